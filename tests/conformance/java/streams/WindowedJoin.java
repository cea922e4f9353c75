import java.time.Duration;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;

/** A stream-stream join: two window stores, two changelogs, each pair of records told by whichever comes later. */
final class WindowedJoin {
    private WindowedJoin() {}

    /**
     * Records of the same key whose timestamps differ by `difference` at most become `left+right`. A record that is
     * older by more than `grace` than the newest one of its partition may find the stores without what it would join.
     */
    static void add(
            StreamsBuilder builder, String left, String right, String joined, Duration difference, Duration grace) {
        KStream<String, String> others = builder.stream(right, Consumed.with(Serdes.String(), Serdes.String()));
        builder.stream(left, Consumed.with(Serdes.String(), Serdes.String()))
                .join(
                        others,
                        (one, other) -> one + "+" + other,
                        JoinWindows.ofTimeDifferenceAndGrace(difference, grace),
                        StreamJoined.with(Serdes.String(), Serdes.String(), Serdes.String()))
                .to(joined, Produced.with(Serdes.String(), Serdes.String()));
    }
}
