import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Producers, with the client's own defaults but for what the settings say. */
final class Producers {
    private static final Map<String, Producer<byte[], byte[]>> OPEN = new ConcurrentHashMap<>();
    private static final AtomicInteger NEXT = new AtomicInteger();

    private Producers() {}

    static void register(Map<String, Driver.Op> ops) {
        ops.put("producer.open", Producers::open);
        ops.put("producer.send", Producers::send);
        ops.put("producer.flush", a -> {
            of(a).flush();
            return null;
        });
        ops.put("producer.init_transactions", a -> {
            of(a).initTransactions();
            return null;
        });
        ops.put("producer.begin", a -> {
            of(a).beginTransaction();
            return null;
        });
        ops.put("producer.commit", a -> {
            of(a).commitTransaction();
            return null;
        });
        ops.put("producer.abort", a -> {
            of(a).abortTransaction();
            return null;
        });
        ops.put("producer.send_offsets", Producers::sendOffsets);
        ops.put("producer.partitions", a -> Consumers.partitions(of(a).partitionsFor(a.get("topic").asText())));
        ops.put("producer.close", a -> {
            String handle = a.get("handle").asText();
            OPEN.remove(handle).close(Duration.ofMillis(a.path("timeout_ms").asLong(30_000)));
            Driver.dropLane(handle);
            return null;
        });
    }

    private static Object open(JsonNode a) {
        String handle = "producer-" + NEXT.incrementAndGet();
        OPEN.put(
                handle,
                new KafkaProducer<>(Driver.config(a), new ByteArraySerializer(), new ByteArraySerializer()));
        return handle;
    }

    /** Offsets of a topic's partitions, of the group of a consumer that nobody uses meanwhile. */
    private static Object sendOffsets(JsonNode a) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        a.get("offsets").forEach(o -> offsets.put(
                new TopicPartition(a.get("topic").asText(), o.get(0).asInt()),
                new OffsetAndMetadata(o.get(1).asLong())));
        of(a).sendOffsetsToTransaction(offsets, Consumers.group(a.get("consumer").asText()));
        return null;
    }

    private static Producer<byte[], byte[]> of(JsonNode a) {
        return OPEN.get(a.get("handle").asText());
    }

    /** Sends all; later, when every one is answered, an entry per record: its place or its error. */
    private static Driver.Later send(JsonNode a) throws IOException {
        Producer<byte[], byte[]> producer = of(a);
        List<Object> sent = new ArrayList<>();
        for (JsonNode r : a.get("records")) {
            ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
                    a.get("topic").asText(),
                    r.hasNonNull("partition") ? r.get("partition").asInt() : null,
                    r.hasNonNull("timestamp") ? r.get("timestamp").asLong() : null,
                    Consumers.bytes(r.get("key")),
                    Consumers.bytes(r.get("value")));
            for (JsonNode h : r.path("headers")) {
                record.headers().add(new RecordHeader(h.get(0).asText(), Consumers.bytes(h.get(1))));
            }
            try {
                sent.add(producer.send(record));
            } catch (KafkaException e) {
                sent.add(e);
            }
        }
        return () -> {
            List<Object> results = new ArrayList<>();
            for (Object one : sent) {
                results.add(
                        one instanceof KafkaException e ? Map.of("error", Driver.error(e)) : told((Future<?>) one));
            }
            return results;
        };
    }

    private static Map<String, Object> told(Future<?> future) throws InterruptedException {
        Map<String, Object> told = new TreeMap<>();
        try {
            RecordMetadata place = (RecordMetadata) future.get();
            told.put("partition", place.partition());
            told.put("offset", place.hasOffset() ? place.offset() : null);
            told.put("timestamp", place.hasTimestamp() ? place.timestamp() : null);
        } catch (ExecutionException e) {
            told.put("error", Driver.error(e));
        }
        return told;
    }
}
