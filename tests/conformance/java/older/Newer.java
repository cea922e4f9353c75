import java.time.Duration;
import java.util.Map;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;

/** What clients of 3.9 have in place of the calls that came later. */
final class Newer {
    private Newer() {}

    static void register(Map<String, Driver.Op> ops) {}

    static void subscribe(Consumer<byte[], byte[]> consumer, String pattern, ConsumerRebalanceListener listener) {
        throw new UnsupportedOperationException("has no pattern that the broker looks at");
    }

    static void close(Consumer<byte[], byte[]> consumer, Duration timeout, String leave) {
        if (!leave.equals("default")) {
            throw new UnsupportedOperationException("leaves as its group has it");
        }
        consumer.close(timeout);
    }

    static Object upgraded(MemberDescription member) {
        return null;
    }

    static String state(ConsumerGroupDescription group) {
        return group.state().toString();
    }
}
