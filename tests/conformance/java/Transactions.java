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
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Consume, transform, produce: the loop of the client's own documentation, in one operation. */
final class Transactions {
    private static final Map<String, Integer> DONE = new ConcurrentHashMap<>();
    private static final int TRIES_MAX = 3;
    private static final Map<String, Integer> UNTIL = new ConcurrentHashMap<>();

    private Transactions() {}

    static void register(Map<String, Driver.Op> ops) {
        ops.put("transactions.copy", Transactions::copy);
        ops.put("transactions.done", a -> DONE.getOrDefault(a.get("name").asText(), 0));
        ops.put("transactions.until", a -> UNTIL.put(a.get("name").asText(), a.get("rows").asInt()));
    }

    /**
     * Copies so many rows of NAME-in to NAME-out, or of other topics that are named, then partition by partition; what
     * made it abort. Every so many batches it aborts on purpose. Without `rows` it goes on until `transactions.until`
     * says how many there are.
     */
    private static Object copy(JsonNode a) throws InterruptedException {
        String name = a.get("name").asText();
        UNTIL.put(name, a.path("rows").asInt(Integer.MAX_VALUE));
        String source = a.path("source").asText(name + "-in");
        int abortEvery = a.path("abort_every").asInt(Integer.MAX_VALUE);
        List<String> aborts = new ArrayList<>();
        Map<String, Object> reads = new HashMap<>();
        reads.put("bootstrap.servers", a.get("bootstrap").asText());
        reads.put("group.id", name);
        reads.put("group.protocol", a.get("protocol").asText());
        reads.put("auto.offset.reset", "earliest");
        reads.put("enable.auto.commit", "false");
        reads.put("isolation.level", "read_committed");
        reads.put("max.poll.records", a.path("batch").asText("10"));
        Map<String, Object> writes = new HashMap<>();
        writes.put("bootstrap.servers", a.get("bootstrap").asText());
        writes.put("transactional.id", name);
        if (a.has("timeout_ms")) {
            writes.put("transaction.timeout.ms", a.get("timeout_ms").asText());
        }
        try (Consumer<byte[], byte[]> consumer =
                        new KafkaConsumer<>(reads, new ByteArrayDeserializer(), new ByteArrayDeserializer());
                Producer<byte[], byte[]> producer =
                        new KafkaProducer<>(writes, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            consumer.subscribe(List.of(source));
            int done = 0;
            int batches = 0;
            while (done < UNTIL.get(name)) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(500));
                if (records.isEmpty()) {
                    continue;
                }
                batches++;
                producer.beginTransaction();
                try {
                    send(producer, consumer, records, a.path("target").asText(name + "-out"), a.has("target"));
                    if (batches % abortEvery == 0) {
                        untilDone(producer::abortTransaction);
                        rewind(consumer);
                        continue;
                    }
                    untilDone(producer::commitTransaction);
                    done += records.count();
                    DONE.put(name, done);
                    Thread.sleep(a.path("pause_ms").asLong(0));
                } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException e) {
                    throw e;
                } catch (KafkaException e) {
                    aborts.add(e.toString());
                    untilDone(producer::abortTransaction);
                    rewind(consumer);
                }
            }
        }
        return aborts;
    }

    /** The end of a transaction that timed out is to be asked for again, and nothing else may be. */
    private static void untilDone(Runnable end) {
        for (int tries = 1; ; tries++) {
            try {
                end.run();
                return;
            } catch (TimeoutException e) {
                if (tries == TRIES_MAX) {
                    throw e;
                }
            }
        }
    }

    private static void send(
            Producer<byte[], byte[]> producer,
            Consumer<byte[], byte[]> consumer,
            ConsumerRecords<byte[], byte[]> records,
            String topic,
            boolean partitionStays) {
        Map<TopicPartition, OffsetAndMetadata> places = new HashMap<>();
        for (ConsumerRecord<byte[], byte[]> record : records) {
            String value = "<" + new String(record.value(), StandardCharsets.UTF_8) + ">";
            Integer partition = partitionStays ? record.partition() : null;
            producer.send(new ProducerRecord<>(topic, partition, null, value.getBytes(StandardCharsets.UTF_8)));
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
