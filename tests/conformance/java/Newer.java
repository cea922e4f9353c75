import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.SubscriptionPattern;

/** Calls that clients before 4.0 have not. Those are compiled with the class of this name in the folder `older`. */
final class Newer {
    private interface Work {
        Object run(Admin admin, JsonNode arguments) throws Exception;
    }

    private Newer() {}

    static void register(Map<String, Driver.Op> ops) {
        with(ops, "list_groups", (admin, a) -> {
            List<Object> told = new ArrayList<>();
            for (GroupListing g : admin.listGroups(new ListGroupsOptions()).all().get()) {
                Map<String, Object> one = new TreeMap<>();
                one.put("group", g.groupId());
                one.put("type", g.type().map(Object::toString).orElse(null));
                one.put("protocol", g.protocol());
                one.put("state", g.groupState().map(Object::toString).orElse(null));
                told.add(one);
            }
            return told;
        });
        with(ops, "describe_classic_groups", (admin, a) -> Admins.each(
                admin.describeClassicGroups(Admins.names(a, "groups")).describedGroups(),
                String::valueOf,
                g -> Map.of(
                        "state", g.state().toString(), "protocol", g.protocol(), "members", g.members().size())));
        with(ops, "list_config_resources", (admin, a) -> {
            List<String> told = new ArrayList<>();
            admin.listConfigResources().all().get().forEach(r -> told.add(Admins.resourceName(r)));
            return told;
        });
    }

    private static void with(Map<String, Driver.Op> ops, String name, Work work) {
        ops.put("admin." + name, a -> work.run(Admins.of(a), a));
    }

    static void subscribe(Consumer<byte[], byte[]> consumer, String pattern, ConsumerRebalanceListener listener) {
        consumer.subscribe(new SubscriptionPattern(pattern), listener);
    }

    static void close(Consumer<byte[], byte[]> consumer, Duration timeout, String leave) {
        CloseOptions options = CloseOptions.timeout(timeout);
        if (leave.equals("leave")) {
            options = options.withGroupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP);
        } else if (leave.equals("remain")) {
            options = options.withGroupMembershipOperation(CloseOptions.GroupMembershipOperation.REMAIN_IN_GROUP);
        }
        consumer.close(options);
    }

    static Object upgraded(MemberDescription member) {
        return member.upgraded().orElse(null);
    }

    static String state(ConsumerGroupDescription group) {
        return group.groupState().toString();
    }
}
