import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The Java client of the rows of transactions: the words, arguments and results of driver.c and transactions.c, for the
 * new protocol of transactions, and two words that it has alone.
 *
 * <pre>
 *     transact, commits, repeat     as in transactions.c
 *     copy    records, warm_up: so many of topic, which holds them, to out with their offsets, a commit each commit_ms
 *     flow    records at rate_per_s to topic, by copy's loop to out, and to a reader of what is committed there
 * </pre>
 */
public final class BenchDriver {
    private static final int SECOND_NS = 1_000_000_000;
    private static final Map<String, String> ARGUMENTS = new HashMap<>();
    private static final Map<String, Object> FOR_PRODUCERS = new HashMap<>();
    private static final Map<String, Object> FOR_CONSUMERS = new HashMap<>();
    private static final AtomicReference<Throwable> REFUSED = new AtomicReference<>();
    private static final Callback NOTE = (place, error) -> {
        if (error != null) {
            REFUSED.compareAndSet(null, error);
        }
    };

    private static final Latencies COMMITS = new Latencies();
    private static final Latencies WHOLE = new Latencies();
    private static long transactions;
    private static long committed;
    private static long cpuBefore;

    private BenchDriver() {}

    /** Ends the process: 0 with a line of JSON, 4 when something was refused, 2 for a wrong call. */
    public static void main(String[] words) {
        int code = 0;
        try {
            read(words);
            switch (words[1]) {
                case "transact" -> transact();
                case "commits" -> commits();
                case "repeat" -> repeat();
                case "copy" -> copy();
                case "flow" -> flow();
                default -> throw new IllegalArgumentException(words[1] + ": transact, commits, repeat, copy or flow");
            }
        } catch (IllegalArgumentException | IOException e) {
            System.err.println(oneLine(e));
            code = 2;
        } catch (Throwable e) {
            System.err.println(oneLine(e));
            code = 4;
        }
        System.out.flush();
        Runtime.getRuntime().halt(code); // closing politely is not what is measured
    }

    private static String oneLine(Throwable e) {
        return e.toString().lines().findFirst().orElse("?");
    }

    private static void read(String[] words) throws IOException {
        Map<String, String> settings = new HashMap<>();
        for (String line : Files.readAllLines(Path.of(words[0]))) {
            int at = line.indexOf('=');
            if (at > 0) {
                settings.put(line.substring(0, at), line.substring(at + 1));
            }
        }
        settings.forEach((name, value) -> {
            if (!name.startsWith("consumer:")) {
                FOR_PRODUCERS.put(name.replaceFirst("^producer:", ""), value);
            }
            if (!name.startsWith("producer:")) {
                FOR_CONSUMERS.put(name.replaceFirst("^consumer:", ""), value);
            }
        });
        for (String word : Arrays.asList(words).subList(2, words.length)) {
            int at = word.indexOf('=');
            if (at < 1) {
                throw new IllegalArgumentException(word + ": want name=value");
            }
            ARGUMENTS.put(word.substring(0, at), word.substring(at + 1));
        }
    }

    private static String text(String name) {
        String found = ARGUMENTS.get(name);
        if (found == null) {
            throw new IllegalArgumentException(name + " is wanted");
        }
        return found;
    }

    private static long number(String name, long otherwise) {
        return Long.parseLong(ARGUMENTS.getOrDefault(name, Long.toString(otherwise)));
    }

    private static Producer<byte[], byte[]> producer(String id) {
        Map<String, Object> config = new HashMap<>(FOR_PRODUCERS);
        config.putIfAbsent("max.block.ms", Long.toString(number("timeout_s", 60) * 1000));
        if (id != null) {
            config.put("transactional.id", id);
        }
        Producer<byte[], byte[]> made =
                new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
        if (id != null) {
            made.initTransactions();
        }
        return made;
    }

    private static Consumer<byte[], byte[]> consumer(Map<String, Object> more) {
        Map<String, Object> config = new HashMap<>(FOR_CONSUMERS);
        config.put("isolation.level", "read_committed");
        config.put("enable.auto.commit", "false");
        config.putAll(more);
        return new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static byte[] payload() {
        byte[] made = new byte[(int) number("record_bytes", 1024)];
        Arrays.fill(made, (byte) 'x');
        return made;
    }

    private static void checkRefused() {
        if (REFUSED.get() != null) {
            throw new IllegalStateException("a record was refused: " + REFUSED.get());
        }
    }

    private static void sleepUntil(long due) {
        for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
            LockSupport.parkNanos(left);
        }
    }

    // -- as fast as it goes ----------------------------------------------------------------------------------------

    private static void transact() {
        boolean plain = number("plain", 0) != 0;
        Producer<byte[], byte[]> producer = producer(plain ? null : text("transactional_id"));
        byte[] payload = payload();
        writeAll(producer, payload, Math.max(1, number("warm_up", 0)), plain);
        forget();
        long begin = System.nanoTime();
        long records = number("records", 1);
        writeAll(producer, payload, records, plain);
        print(records, begin, System.nanoTime());
    }

    private static void forget() {
        COMMITS.count = 0;
        WHOLE.count = 0;
        transactions = 0;
        committed = 0;
        cpuBefore = cpu();
    }

    private static void writeAll(Producer<byte[], byte[]> producer, byte[] payload, long count, boolean plain) {
        String topic = text("topic");
        long spanNs = number("commit_ms", 0) * 1_000_000;
        long number = 0;
        while (number < count) {
            long first = number;
            if (!plain) {
                producer.beginTransaction();
            }
            long begun = System.nanoTime();
            while (number < count && (spanNs == 0 || System.nanoTime() - begun < spanNs)) {
                producer.send(new ProducerRecord<>(topic, payload), NOTE);
                number++;
            }
            if (!plain) {
                commit(producer, begun, number - first);
            }
        }
        if (plain) {
            producer.flush();
        }
        checkRefused();
    }

    private static void commit(Producer<byte[], byte[]> producer, long begun, long records) {
        long asked = System.nanoTime();
        producer.commitTransaction();
        long end = System.nanoTime();
        COMMITS.add(end - asked);
        WHOLE.add(end - begun);
        transactions++;
        committed += records;
    }

    private static void commits() {
        Producer<byte[], byte[]> producer = producer(text("transactional_id"));
        String topic = text("topic");
        byte[] payload = payload();
        int partitions = (int) number("partitions", 1);
        long records = number("records", 1);
        long rate = number("rate_per_s", 1);
        forget();
        long begin = System.nanoTime();
        long until = begin + 2 * records * SECOND_NS / rate;
        for (long number = 0; number < records && System.nanoTime() < until; number++) {
            long due = begin + number * SECOND_NS / rate;
            sleepUntil(due);
            producer.beginTransaction();
            for (int partition = 0; partition < partitions; partition++) {
                producer.send(new ProducerRecord<>(topic, partition, null, payload), NOTE);
            }
            producer.flush();
            commit(producer, due, partitions);
            if (number + 1 == number("skip", 0)) {
                COMMITS.count = 0;
                WHOLE.count = 0;
            }
        }
        checkRefused();
        print(committed, begin, System.nanoTime());
    }

    // -- one record each, over and over ----------------------------------------------------------------------------

    private static void repeat() throws InterruptedException {
        int producers = (int) number("producers", 1);
        int partitions = (int) number("partitions", 1);
        String topic = text("topic");
        byte[] payload = payload();
        long[] window = {Long.MAX_VALUE, Long.MAX_VALUE};
        CountDownLatch ready = new CountDownLatch(producers);
        List<Thread> threads = new ArrayList<>();
        List<Latencies> found = new ArrayList<>();
        for (int n = 0; n < producers; n++) {
            String id = text("transactional_id") + "-" + n;
            int from = n;
            Latencies mine = new Latencies();
            found.add(mine);
            threads.add(new Thread(null, () -> repeat(id, from, partitions, topic, payload, window, ready, mine), id));
        }
        threads.forEach(Thread::start);
        ready.await();
        checkRefused();
        Thread.sleep(number("warm_up_ms", 0));
        forget();
        long begin = System.nanoTime();
        long end = begin + number("measure_ms", 1000) * 1_000_000;
        synchronized (window) {
            window[0] = begin;
            window[1] = end;
        }
        sleepUntil(end);
        for (Thread thread : threads) {
            thread.join(number("timeout_s", 60) * 1000);
            if (thread.isAlive()) {
                throw new IllegalStateException("a producer does not come to its end");
            }
        }
        checkRefused();
        for (Latencies each : found) {
            for (int i = 0; i < each.count; i++) {
                WHOLE.add(each.values[i]);
            }
        }
        transactions = committed = WHOLE.count;
        print(transactions, begin, end);
    }

    private static void repeat(
            String id,
            int from,
            int partitions,
            String topic,
            byte[] payload,
            long[] window,
            CountDownLatch ready,
            Latencies mine) {
        try {
            Producer<byte[], byte[]> producer;
            try {
                producer = producer(id);
            } finally {
                ready.countDown();
            }
            for (int number = from; ; number++) {
                long begun = System.nanoTime();
                if (REFUSED.get() != null || begun >= edge(window, 1)) {
                    return;
                }
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, number % partitions, null, payload), NOTE);
                producer.commitTransaction();
                long end = System.nanoTime();
                if (begun >= edge(window, 0) && end <= edge(window, 1)) {
                    mine.add(end - begun);
                }
            }
        } catch (RuntimeException e) {
            REFUSED.compareAndSet(null, e);
        }
    }

    private static long edge(long[] window, int which) {
        synchronized (window) {
            return window[which];
        }
    }

    // -- consume, transform, produce -------------------------------------------------------------------------------

    private static Consumer<byte[], byte[]> member() {
        Consumer<byte[], byte[]> made = consumer(Map.of(
                "group.id", text("transactional_id"), "group.protocol", "consumer", "auto.offset.reset", "earliest"));
        made.subscribe(List.of(text("topic")));
        return made;
    }

    /** Copies until so many are committed; measures what comes after the first `unmeasured`. When it began to measure. */
    private static long copyAll(long unmeasured, long count) {
        Consumer<byte[], byte[]> consumer = member();
        Producer<byte[], byte[]> producer = producer(text("transactional_id"));
        String out = text("out");
        long spanNs = number("commit_ms", 100) * 1_000_000;
        long deadline = System.nanoTime() + number("timeout_s", 60) * SECOND_NS;
        long done = 0;
        long began = -1;
        while (done < unmeasured + count) {
            ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(20));
            if (records.isEmpty()) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException(done + " records within the time");
                }
                continue;
            }
            if (began < 0 && done >= unmeasured) {
                forget();
                began = System.nanoTime();
            }
            long until = began < 0 ? unmeasured : unmeasured + count;
            long begun = System.nanoTime();
            long copied = 0;
            Map<TopicPartition, OffsetAndMetadata> places = new HashMap<>();
            producer.beginTransaction();
            while (true) {
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    byte[] value = record.value().clone();
                    value[value.length - 1] ^= 1;
                    producer.send(new ProducerRecord<>(out, record.partition(), null, value), NOTE);
                }
                copied += records.count();
                places.putAll(records.nextOffsets());
                long left = begun + spanNs - System.nanoTime();
                if (left <= 0 || done + copied >= until) {
                    break;
                }
                records = consumer.poll(Duration.ofNanos(left));
            }
            producer.sendOffsetsToTransaction(places, consumer.groupMetadata());
            commit(producer, begun, copied);
            done += copied;
            checkRefused();
        }
        return began;
    }

    private static void copy() {
        long records = number("records", 1);
        long began = copyAll(number("warm_up", 0), records);
        print(committed, began, System.nanoTime());
    }

    private static void flow() throws InterruptedException {
        long records = number("records", 1);
        long skip = number("skip", 0);
        long rate = number("rate_per_s", 1);
        int partitions = (int) number("partitions", 1);
        CountDownLatch reading = new CountDownLatch(1);
        Thread reader = aside("reader", () -> follow(records, skip, reading));
        reading.await();
        Thread copier = aside("copier", () -> copyAll(0, records));
        Producer<byte[], byte[]> producer = producer(null);
        String topic = text("topic");
        long begin = System.nanoTime() + 2L * SECOND_NS; // the member has its partitions by then
        for (long number = 0; number < records; number++) {
            long due = begin + number * SECOND_NS / rate;
            sleepUntil(due);
            byte[] value = payload();
            ByteBuffer.wrap(value).putLong(due);
            producer.send(new ProducerRecord<>(topic, (int) (number % partitions), null, value), NOTE);
        }
        producer.flush();
        for (Thread each : List.of(copier, reader)) {
            each.join(number("timeout_s", 60) * 1000);
            if (each.isAlive()) {
                throw new IllegalStateException("the " + each.getName() + " does not come to its end");
            }
        }
        checkRefused();
        print(records, begin, System.nanoTime());
    }

    private static Thread aside(String name, Runnable work) {
        Thread thread = new Thread(
                () -> {
                    try {
                        work.run();
                    } catch (RuntimeException e) {
                        REFUSED.compareAndSet(null, e);
                    }
                },
                name);
        thread.start();
        return thread;
    }

    private static final Latencies END_TO_END = new Latencies();

    private static void follow(long records, long skip, CountDownLatch reading) {
        Consumer<byte[], byte[]> consumer = consumer(Map.of("auto.offset.reset", "earliest"));
        List<TopicPartition> all = new ArrayList<>();
        for (int partition = 0; partition < number("partitions", 1); partition++) {
            all.add(new TopicPartition(text("out"), partition));
        }
        try {
            consumer.assign(all);
            consumer.seekToEnd(all);
            all.forEach(consumer::position);
        } finally {
            reading.countDown();
        }
        for (long seen = 0; seen < records && REFUSED.get() == null; ) {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(20))) {
                if (seen++ >= skip) {
                    END_TO_END.add(System.nanoTime() - ByteBuffer.wrap(record.value()).getLong());
                }
            }
        }
    }

    // -- what is told ----------------------------------------------------------------------------------------------

    private static long cpu() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    private static void print(long records, long begin, long end) {
        String made = String.format(
                Locale.ROOT,
                "{\"version\": \"%s\", \"records\": %d, \"bytes\": %d, \"begin_ns\": %d, \"end_ns\": %d, \"cpu_s\": %.3f,"
                        + " \"transactions\": %d, \"committed\": %d%s%s%s}",
                org.apache.kafka.common.utils.AppInfoParser.getVersion(),
                records,
                records * number("record_bytes", 1024),
                begin,
                end,
                (cpu() - cpuBefore) / 1e9,
                transactions,
                committed,
                COMMITS.told("commit_ms"),
                WHOLE.told("transaction_ms"),
                END_TO_END.told("end_to_end_ms"));
        System.out.println(made);
    }

    /** Nanoseconds, as many as there are. One thread adds. */
    private static final class Latencies {
        private long[] values = new long[1024];
        private int count;

        void add(long value) {
            if (count == values.length) {
                values = Arrays.copyOf(values, 2 * count);
            }
            values[count++] = value;
        }

        /** 50, 99, 99.9 and 100 %, or nothing where there are none. */
        String told(String name) {
            if (count == 0) {
                return "";
            }
            long[] sorted = Arrays.copyOf(values, count);
            Arrays.sort(sorted);
            List<String> parts = new ArrayList<>();
            for (double at : new double[] {0.5, 0.99, 0.999, 1}) {
                int index = Math.min(count - 1, (int) (at * count));
                parts.add(String.format(Locale.ROOT, "%.3f", sorted[index] / 1e6));
            }
            return ", \"" + name + "\": [" + String.join(", ", parts) + "]";
        }
    }
}
