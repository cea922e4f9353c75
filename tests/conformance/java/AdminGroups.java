import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;

/** The admin client's calls on groups. */
final class AdminGroups {
    private interface Work {
        Object run(Admin admin, JsonNode arguments) throws Exception;
    }

    private AdminGroups() {}

    static void register(Map<String, Driver.Op> ops) {
        with(ops, "describe_consumer_groups", (admin, a) -> Admins.each(
                admin.describeConsumerGroups(Admins.names(a, "groups")).describedGroups(),
                String::valueOf,
                AdminGroups::group));
        with(ops, "delete_consumer_groups", (admin, a) -> Admins.each(
                admin.deleteConsumerGroups(Admins.names(a, "groups")).deletedGroups(), String::valueOf, v -> true));
        with(ops, "remove_members", (admin, a) -> {
            Set<MemberToRemove> members = new HashSet<>();
            Admins.names(a, "instances").forEach(i -> members.add(new MemberToRemove(i)));
            String group = a.get("group").asText();
            if (members.isEmpty()) {
                admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions())
                        .all()
                        .get();
                return Map.of();
            }
            var result =
                    admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions(members));
            Map<String, KafkaFuture<Void>> done = new HashMap<>();
            members.forEach(m -> done.put(m.groupInstanceId(), result.memberResult(m)));
            return Admins.each(done, String::valueOf, v -> true);
        });
        offsets(ops);
    }

    private static void offsets(Map<String, Driver.Op> ops) {
        with(ops, "list_consumer_group_offsets", (admin, a) -> {
            Map<String, ListConsumerGroupOffsetsSpec> asked = new HashMap<>();
            Admins.names(a, "groups").forEach(g -> asked.put(g, new ListConsumerGroupOffsetsSpec()));
            var result = admin.listConsumerGroupOffsets(asked);
            Map<String, KafkaFuture<Map<TopicPartition, OffsetAndMetadata>>> found = new HashMap<>();
            asked.keySet().forEach(g -> found.put(g, result.partitionsToOffsetAndMetadata(g)));
            return Admins.each(found, String::valueOf, offsets -> {
                Map<String, Object> told = new TreeMap<>();
                offsets.forEach((p, o) -> told.put(
                        p.toString(), o == null ? null : List.of(o.offset(), o.metadata(), o.leaderEpoch().orElse(-1))));
                return told;
            });
        });
        with(ops, "alter_consumer_group_offsets", (admin, a) -> {
            Map<TopicPartition, OffsetAndMetadata> wanted = Consumers.offsets(a);
            var result = admin.alterConsumerGroupOffsets(a.get("group").asText(), wanted);
            Map<TopicPartition, KafkaFuture<Void>> done = new HashMap<>();
            wanted.keySet().forEach(p -> done.put(p, result.partitionResult(p)));
            return Admins.each(done, String::valueOf, v -> true);
        });
        with(ops, "delete_consumer_group_offsets", (admin, a) -> {
            Set<TopicPartition> which = new HashSet<>(Consumers.places(a));
            var result = admin.deleteConsumerGroupOffsets(a.get("group").asText(), which);
            Map<TopicPartition, KafkaFuture<Void>> done = new HashMap<>();
            which.forEach(p -> done.put(p, result.partitionResult(p)));
            return Admins.each(done, String::valueOf, v -> true);
        });
    }

    private static void with(Map<String, Driver.Op> ops, String name, Work work) {
        ops.put("admin." + name, a -> work.run(Admins.of(a), a));
    }

    private static Object group(ConsumerGroupDescription g) {
        List<Object> members = new ArrayList<>();
        for (MemberDescription m : g.members()) {
            Map<String, Object> told = new TreeMap<>();
            told.put("id", m.consumerId());
            told.put("instance", m.groupInstanceId().orElse(null));
            told.put("client", m.clientId());
            told.put("host", m.host());
            told.put("partitions", Consumers.pairs(m.assignment().topicPartitions()));
            told.put("upgraded", Newer.upgraded(m));
            members.add(told);
        }
        return Map.of(
                "state", Newer.state(g),
                "type", g.type().toString(),
                "assignor", g.partitionAssignor(),
                "simple", g.isSimpleConsumerGroup(),
                "coordinator", g.coordinator().id(),
                "members", members);
    }
}
