import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Produced;

/** Counts words: a repartition topic, a changelog, a state store; may join two other streams. Runs until stdin ends. */
public final class WordCount {
    private WordCount() {}

    /**
     * Arguments: bootstrap address, application id, state folder, topic of lines, topic of counts, guarantee; for a join
     * beside it the topics of left, right and joined records, and the window and its grace in milliseconds.
     */
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[2]);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 500);
        settings.put(
                StreamsConfig.PROCESSING_GUARANTEE_CONFIG,
                arguments.length > 5 ? arguments[5] : StreamsConfig.AT_LEAST_ONCE);
        // Whoever is killed leaves a transaction, and a member that is missed only after this.
        settings.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), 10_000);
        settings.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 6_000);
        settings.put("auto.offset.reset", "earliest");
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(arguments[3], Consumed.with(Serdes.String(), Serdes.String()))
                .flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
                .count()
                .toStream()
                .mapValues(String::valueOf)
                .to(arguments[4], Produced.with(Serdes.String(), Serdes.String()));
        if (arguments.length > 6) {
            Duration difference = Duration.ofMillis(Long.parseLong(arguments[9]));
            Duration grace = Duration.ofMillis(Long.parseLong(arguments[10]));
            WindowedJoin.add(builder, arguments[6], arguments[7], arguments[8], difference, grace);
        }
        CountDownLatch failed = new CountDownLatch(1);
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings)) {
            streams.setStateListener((now, before) -> {
                System.out.println(now);
                if (now == KafkaStreams.State.ERROR) {
                    failed.countDown();
                }
            });
            streams.setUncaughtExceptionHandler(e -> {
                System.out.println("fatal: " + e);
                e.printStackTrace();
                return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse
                        .SHUTDOWN_CLIENT;
            });
            streams.start();
            while (System.in.read() >= 0 && failed.getCount() > 0) {}
            streams.close(Duration.ofSeconds(30));
        }
        System.out.println("closed");
    }
}
