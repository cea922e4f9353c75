import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.InvalidPidMappingException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A member of the bank's group in a process of its own, as chaos/bank/member.py: reads orders, books both sides in one
 * transaction, and tells of all that it does, before it does it, in lines of JSON on stdout.
 *
 * <p>It does what the client's documentation asks for: a call that has timed out is made again, a fatal exception ends
 * the producer (and the process, with code 3: whoever started it starts another), after any other the transaction is
 * aborted and the consumer goes back to what is committed. What the group knows of the member is asked before records
 * are read; records of two assignments, or of none, are read again.
 */
public final class BankMember implements ConsumerRebalanceListener {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final PrintStream OUT = System.out;
    private static final int FATAL = 3;
    private static final int PARTITIONS = 12;
    private static final long VALUES_PER_PROCESS = 10_000_000_000L;
    private static final Duration POLL = Duration.ofMillis(200);

    private final Consumer<byte[], byte[]> consumer;
    private final Consumer<byte[], byte[]> reader;
    private final Producer<byte[], byte[]> producer;
    private long values;
    private int number;
    private boolean hasToRewind;

    private BankMember(String bootstrap, String name, String protocol, long process, Map<String, String> limits) {
        values = process * VALUES_PER_PROCESS;
        Map<String, Object> reads = new HashMap<>();
        reads.put("bootstrap.servers", bootstrap);
        reads.put("enable.auto.commit", "false");
        reads.put("isolation.level", "read_committed");
        reads.put("auto.offset.reset", "none");
        reader = new KafkaConsumer<>(reads, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        List<TopicPartition> bookings = new ArrayList<>();
        for (int partition = 0; partition < PARTITIONS; partition++) {
            bookings.add(new TopicPartition("bookings", partition));
        }
        reader.assign(bookings);
        reader.seekToBeginning(bookings);
        reads.put("group.id", "bank");
        reads.put("client.id", name);
        reads.put("group.protocol", protocol);
        reads.put("auto.offset.reset", "earliest");
        reads.put("max.poll.records", "20");
        if (protocol.equals("classic")) {
            reads.put("session.timeout.ms", limits.get("session"));
            reads.put("heartbeat.interval.ms", "2000");
            reads.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor");
        }
        consumer = new KafkaConsumer<>(reads, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        Map<String, Object> writes = new HashMap<>();
        writes.put("bootstrap.servers", bootstrap);
        writes.put("transactional.id", name);
        writes.put("transaction.timeout.ms", limits.get("transaction"));
        producer = new KafkaProducer<>(writes, new ByteArraySerializer(), new ByteArraySerializer());
    }

    /** BOOTSTRAP NAME PROTOCOL PROCESS SESSION_TIMEOUT_MS TRANSACTION_TIMEOUT_MS. */
    public static void main(String[] a) {
        try {
            new BankMember(a[0], a[1], a[2], Long.parseLong(a[3]), Map.of("session", a[4], "transaction", a[5]))
                    .run();
        } catch (RuntimeException e) {
            tell("fatal", Map.of("why", words(e)));
            // What is still on its way is nobody's any more.
            Runtime.getRuntime().halt(FATAL);
        }
    }

    private void run() {
        again(producer::initTransactions);
        tell("ready", Map.of());
        consumer.subscribe(List.of("orders"), this);
        while (true) {
            ConsumerGroupMetadata group = consumer.groupMetadata();
            ConsumerRecords<byte[], byte[]> orders;
            try {
                orders = consumer.poll(POLL);
            } catch (RetriableException e) {
                tell("not read", Map.of("why", words(e)));
                hasToRewind = true;
                continue;
            }
            boolean isMember = group.generationId() >= 0 && !group.memberId().isEmpty();
            if (hasToRewind || (!orders.isEmpty() && !isMember)) {
                hasToRewind = !rewind();
            } else if (!orders.isEmpty()) {
                book(orders, group);
            }
        }
    }

    private void book(ConsumerRecords<byte[], byte[]> orders, ConsumerGroupMetadata group) {
        number++;
        List<ProducerRecord<byte[], byte[]>> rows = new ArrayList<>();
        List<Long> own = new ArrayList<>();
        List<List<Long>> told = new ArrayList<>();
        Map<TopicPartition, OffsetAndMetadata> places = new HashMap<>();
        for (ConsumerRecord<byte[], byte[]> record : orders) {
            String[] order = text(record.value()).split(" ");
            addSide(order[0], order[1], "-" + order[3], rows, own, told);
            addSide(order[0], order[2], order[3], rows, own, told);
            places.put(
                    new TopicPartition(record.topic(), record.partition()),
                    new OffsetAndMetadata(record.offset() + 1));
        }
        tell("begin", Map.of("number", number, "rows", told));
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try {
            producer.beginTransaction();
            for (ProducerRecord<byte[], byte[]> row : rows) {
                sent.add(producer.send(row));
            }
            read();
            again(() -> producer.sendOffsetsToTransaction(places, group));
            tell("commit", Map.of("number", number));
            again(producer::commitTransaction);
            tell("committed", Map.of("number", number, "offsets", offsets(own, sent)));
        } catch (ProducerFencedException
                | OutOfOrderSequenceException
                | AuthorizationException
                | UnsupportedVersionException
                | InvalidPidMappingException e) {
            throw e;
        } catch (KafkaException e) {
            tell("abort", Map.of("number", number, "why", words(e)));
            again(producer::abortTransaction);
            tell("aborted", Map.of("number", number, "offsets", offsets(own, sent)));
            hasToRewind = true;
        }
    }

    private void addSide(
            String order,
            String account,
            String amount,
            List<ProducerRecord<byte[], byte[]>> rows,
            List<Long> own,
            List<List<Long>> told) {
        values++;
        int partition = Integer.parseInt(account) % PARTITIONS;
        byte[] value = (values + " " + order + " " + account + " " + amount).getBytes(StandardCharsets.UTF_8);
        rows.add(new ProducerRecord<>("bookings", partition, null, value));
        own.add(values);
        told.add(List.of(values, (long) partition));
    }

    /** As a reader of committed bookings, while a transaction is open. */
    private void read() {
        List<List<Long>> rows = new ArrayList<>();
        for (ConsumerRecord<byte[], byte[]> record : reader.poll(Duration.ZERO)) {
            long value = Long.parseLong(text(record.value()).split(" ")[0]);
            rows.add(List.of((long) record.partition(), record.offset(), value));
        }
        if (!rows.isEmpty()) {
            tell("read", Map.of("number", number, "rows", rows));
        }
    }

    /** To what is committed; whether that was possible by now. */
    private boolean rewind() {
        try {
            Collection<TopicPartition> fresh = new ArrayList<>();
            Map<TopicPartition, OffsetAndMetadata> known =
                    consumer.committed(consumer.assignment(), Duration.ofSeconds(5));
            for (TopicPartition partition : consumer.assignment()) {
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
            return true;
        } catch (KafkaException e) {
            tell("not rewound", Map.of("why", words(e)));
            return false;
        }
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        changed(partitions);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        changed(partitions);
    }

    private void changed(Collection<TopicPartition> partitions) {
        hasToRewind = true;
        tell(
                "assignment",
                Map.of("partitions", partitions.stream().map(TopicPartition::partition).sorted().toList()));
    }

    private static List<List<Long>> offsets(List<Long> own, List<Future<RecordMetadata>> sent) {
        List<List<Long>> found = new ArrayList<>();
        for (int row = 0; row < sent.size(); row++) {
            Future<RecordMetadata> one = sent.get(row);
            try {
                if (one.isDone() && one.get().hasOffset()) {
                    found.add(List.of(own.get(row), one.get().offset()));
                }
            } catch (ExecutionException e) {
                continue; // it may be there or not
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        }
        return found;
    }

    private static void again(Runnable call) {
        while (true) {
            try {
                call.run();
                return;
            } catch (TimeoutException e) {
                tell("again", Map.of("why", words(e)));
            }
        }
    }

    private static void tell(String what, Map<String, Object> more) {
        Map<String, Object> line = new LinkedHashMap<>();
        // The monotonic clock of the system, as Python's.
        line.put("s", System.nanoTime() / 1e9);
        line.put("what", what);
        line.putAll(more);
        try {
            byte[] told = (JSON.writeValueAsString(line) + "\n").getBytes(StandardCharsets.UTF_8);
            OUT.write(told, 0, told.length);
            OUT.flush();
        } catch (JsonProcessingException e) {
            throw new IllegalStateException(e);
        }
    }

    private static String words(Throwable e) {
        String cause = e.getCause() == null ? "" : " (" + e.getCause() + ")";
        return e + cause;
    }

    private static String text(byte[] value) {
        return new String(value, StandardCharsets.UTF_8);
    }
}
