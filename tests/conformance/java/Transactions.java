import com.fasterxml.jackson.databind.JsonNode;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Consume, transform, produce: the loop of the client's own documentation, in one operation. */
final class Transactions {
    private static final Map<String, Integer> DONE = new ConcurrentHashMap<>();

    private Transactions() {}

    static void register(Map<String, Driver.Op> ops) {
        ops.put("transactions.copy", Transactions::copy);
        ops.put("transactions.done", a -> DONE.getOrDefault(a.get("name").asText(), 0));
    }

    /** Copies so many rows of NAME-in to NAME-out; what made it abort. Every so many batches it aborts on purpose. */
    private static Object copy(JsonNode a) throws InterruptedException {
        String name = a.get("name").asText();
        int rows = a.get("rows").asInt();
        int abortEvery = a.path("abort_every").asInt(Integer.MAX_VALUE);
        List<String> aborts = new ArrayList<>();
        Map<String, Object> reads = new HashMap<>();
        reads.put("bootstrap.servers", a.get("bootstrap").asText());
        reads.put("group.id", name);
        reads.put("group.protocol", a.get("protocol").asText());
        reads.put("auto.offset.reset", "earliest");
        reads.put("enable.auto.commit", "false");
        reads.put("isolation.level", "read_committed");
        reads.put("max.poll.records", "10");
        Map<String, Object> writes = new HashMap<>();
        writes.put("bootstrap.servers", a.get("bootstrap").asText());
        writes.put("transactional.id", name);
        try (Consumer<byte[], byte[]> consumer =
                        new KafkaConsumer<>(reads, new ByteArrayDeserializer(), new ByteArrayDeserializer());
                Producer<byte[], byte[]> producer =
                        new KafkaProducer<>(writes, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            consumer.subscribe(List.of(name + "-in"));
            int done = 0;
            for (int batches = 1; done < rows; batches++) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(500));
                if (records.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                try {
                    send(producer, consumer, records, name + "-out");
                    if (batches % abortEvery == 0) {
                        producer.abortTransaction();
                        rewind(consumer);
                        continue;
                    }
                    producer.commitTransaction();
                    done += records.count();
                    DONE.put(name, done);
                    Thread.sleep(a.path("pause_ms").asLong(0));
                } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException e) {
                    throw e;
                } catch (KafkaException e) {
                    aborts.add(e.toString());
                    producer.abortTransaction();
                    rewind(consumer);
                }
            }
        }
        return aborts;
    }

    private static void send(
            Producer<byte[], byte[]> producer,
            Consumer<byte[], byte[]> consumer,
            ConsumerRecords<byte[], byte[]> records,
            String topic) {
        Map<TopicPartition, OffsetAndMetadata> places = new HashMap<>();
        for (ConsumerRecord<byte[], byte[]> record : records) {
            String value = "<" + new String(record.value(), StandardCharsets.UTF_8) + ">";
            producer.send(new ProducerRecord<>(topic, value.getBytes(StandardCharsets.UTF_8)));
            places.put(
                    new TopicPartition(record.topic(), record.partition()),
                    new OffsetAndMetadata(record.offset() + 1));
        }
        producer.sendOffsetsToTransaction(places, consumer.groupMetadata());
    }

    private static void rewind(Consumer<byte[], byte[]> consumer) {
        Set<TopicPartition> mine = consumer.assignment();
        Map<TopicPartition, OffsetAndMetadata> known = consumer.committed(mine);
        Collection<TopicPartition> fresh = new ArrayList<>();
        for (TopicPartition partition : mine) {
            OffsetAndMetadata place = known.get(partition);
            if (place == null) {
                fresh.add(partition);
            } else {
                consumer.seek(partition, place);
            }
        }
        if (!fresh.isEmpty()) {
            consumer.seekToBeginning(fresh);
        }
    }
}
