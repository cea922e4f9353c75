import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Function;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigsOptions;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreatePartitionsOptions;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.DeletedRecords;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaFilter;

/**
 * The admin client. A call on several things answers, per thing, {"result": ...} or {"error": ...}; a partition's
 * name is topic-number. One client is kept per set of settings.
 */
final class Admins {
    private interface Work {
        Object run(Admin admin, JsonNode arguments) throws Exception;
    }

    private static final Map<Map<String, Object>, Admin> OPEN = new ConcurrentHashMap<>();

    private Admins() {}

    static void register(Map<String, Driver.Op> ops) {
        topics(ops);
        partitions(ops);
        configs(ops);
        AdminGroups.register(ops);
        AdminTransactions.register(ops);
        Newer.register(ops);
        cluster(ops);
        ops.put("admin.close", a -> {
            Admin admin = OPEN.remove(Driver.config(a));
            if (admin != null) {
                admin.close();
            }
            return null;
        });
    }

    static Admin of(JsonNode a) {
        return OPEN.computeIfAbsent(Driver.config(a), Admin::create);
    }

    private static void with(Map<String, Driver.Op> ops, String name, Work work) {
        ops.put("admin." + name, a -> work.run(of(a), a));
    }

    private static void topics(Map<String, Driver.Op> ops) {
        with(ops, "create_topics", (admin, a) -> {
            List<NewTopic> topics = new ArrayList<>();
            a.get("topics").forEach(t -> topics.add(newTopic(t)));
            CreateTopicsOptions options = new CreateTopicsOptions().validateOnly(a.path("validate_only").asBoolean());
            return each(admin.createTopics(topics, options).values(), String::valueOf, v -> true);
        });
        with(ops, "delete_topics", (admin, a) ->
                each(admin.deleteTopics(names(a, "topics")).topicNameValues(), String::valueOf, v -> true));
        with(ops, "list_topics", (admin, a) -> admin.listTopics(
                        new ListTopicsOptions().listInternal(a.path("internal").asBoolean()))
                .names()
                .get());
        with(ops, "describe_topics", (admin, a) -> each(
                admin.describeTopics(names(a, "topics")).topicNameValues(), String::valueOf, Admins::topic));
        with(ops, "create_partitions", (admin, a) -> {
            Map<String, NewPartitions> wanted = new HashMap<>();
            a.get("totals").properties().forEach(e ->
                    wanted.put(e.getKey(), NewPartitions.increaseTo(e.getValue().asInt())));
            var options = new CreatePartitionsOptions().validateOnly(a.path("validate_only").asBoolean());
            return each(admin.createPartitions(wanted, options).values(), String::valueOf, v -> true);
        });
    }

    private static void partitions(Map<String, Driver.Op> ops) {
        with(ops, "delete_records", (admin, a) -> {
            Map<TopicPartition, RecordsToDelete> wanted = new HashMap<>();
            Consumers.offsets(a).forEach((p, o) -> wanted.put(p, RecordsToDelete.beforeOffset(o.offset())));
            return each(admin.deleteRecords(wanted).lowWatermarks(), String::valueOf, DeletedRecords::lowWatermark);
        });
        with(ops, "list_offsets", (admin, a) -> {
            Map<TopicPartition, OffsetSpec> asked = new HashMap<>();
            a.get("partitions").forEach(p -> asked.put(
                    new TopicPartition(p.get(0).asText(), p.get(1).asInt()), spec(p.get(2).asText())));
            var level = IsolationLevel.valueOf(a.path("isolation").asText("READ_UNCOMMITTED"));
            var result = admin.listOffsets(asked, new ListOffsetsOptions(level));
            Map<TopicPartition, KafkaFuture<Map<String, Object>>> found = new HashMap<>();
            asked.keySet().forEach(p -> found.put(p, result.partitionResult(p).thenApply(o -> {
                Map<String, Object> told = new TreeMap<>();
                told.put("offset", o.offset());
                told.put("timestamp", o.timestamp());
                told.put("leader_epoch", o.leaderEpoch().orElse(null));
                return told;
            })));
            return each(found, String::valueOf, v -> v);
        });
        with(ops, "elect_leaders", (admin, a) -> {
            ElectionType type = ElectionType.valueOf(a.path("type").asText("PREFERRED"));
            Set<TopicPartition> which = a.has("partitions") ? new HashSet<>(Consumers.places(a)) : null;
            Map<String, Object> told = new TreeMap<>();
            admin.electLeaders(type, which).partitions().get().forEach((p, e) -> told.put(
                    p.toString(), e.<Object>map(x -> Map.of("error", Driver.error(x))).orElse(Map.of("result", true))));
            return told;
        });
        with(ops, "alter_partition_reassignments", (admin, a) -> {
            Map<TopicPartition, Optional<NewPartitionReassignment>> wanted = new HashMap<>();
            a.get("reassignments").forEach(r -> wanted.put(
                    new TopicPartition(r.get(0).asText(), r.get(1).asInt()),
                    r.hasNonNull(2) ? Optional.of(new NewPartitionReassignment(numbers(r.get(2)))) : Optional.empty()));
            return each(admin.alterPartitionReassignments(wanted).values(), String::valueOf, v -> true);
        });
        with(ops, "list_partition_reassignments", (admin, a) -> {
            Map<String, Object> told = new TreeMap<>();
            admin.listPartitionReassignments().reassignments().get().forEach((p, r) -> told.put(
                    p.toString(),
                    Map.of("replicas", r.replicas(), "adding", r.addingReplicas(), "removing", r.removingReplicas())));
            return told;
        });
        with(ops, "describe_producers", (admin, a) -> {
            var result = admin.describeProducers(Consumers.places(a));
            Map<TopicPartition, KafkaFuture<List<Object>>> found = new HashMap<>();
            Consumers.places(a).forEach(p -> found.put(p, result.partitionResult(p).thenApply(s -> {
                List<Object> told = new ArrayList<>();
                s.activeProducers().forEach(one -> told.add(Map.of(
                        "id", one.producerId(), "epoch", one.producerEpoch(), "last_sequence", one.lastSequence())));
                return told;
            })));
            return each(found, String::valueOf, v -> v);
        });
    }

    private static void configs(Map<String, Driver.Op> ops) {
        with(ops, "describe_configs", (admin, a) -> {
            List<ConfigResource> asked = new ArrayList<>();
            a.get("resources").forEach(r -> asked.add(resource(r)));
            DescribeConfigsOptions options = new DescribeConfigsOptions()
                    .includeSynonyms(a.path("synonyms").asBoolean())
                    .includeDocumentation(a.path("documentation").asBoolean());
            return each(admin.describeConfigs(asked, options).values(), Admins::resourceName, config -> {
                Map<String, Object> told = new TreeMap<>();
                config.entries().forEach(e -> told.put(e.name(), entry(e)));
                return told;
            });
        });
        with(ops, "incremental_alter_configs", (admin, a) -> {
            Map<ConfigResource, Collection<AlterConfigOp>> wanted = new HashMap<>();
            a.get("changes").forEach(c -> wanted.computeIfAbsent(resource(c), k -> new ArrayList<>())
                    .add(new AlterConfigOp(
                            new ConfigEntry(c.get(2).asText(), c.hasNonNull(4) ? c.get(4).asText() : null),
                            AlterConfigOp.OpType.valueOf(c.get(3).asText()))));
            var options = new AlterConfigsOptions().validateOnly(a.path("validate_only").asBoolean());
            return each(admin.incrementalAlterConfigs(wanted, options).values(), Admins::resourceName, v -> true);
        });
        with(ops, "describe_client_quotas", (admin, a) ->
                admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().size());
    }

    private static void cluster(Map<String, Driver.Op> ops) {
        with(ops, "describe_cluster", (admin, a) -> {
            var result = admin.describeCluster();
            List<List<Object>> nodes = new ArrayList<>();
            result.nodes().get().forEach(n -> nodes.add(node(n)));
            return Map.of(
                    "cluster_id", result.clusterId().get(), "controller", node(result.controller().get()), "nodes", nodes);
        });
        with(ops, "describe_log_dirs", (admin, a) -> each(
                admin.describeLogDirs(numbers(a.get("nodes"))).descriptions(), String::valueOf, dirs -> {
                    List<Object> told = new ArrayList<>();
                    dirs.forEach((path, dir) -> {
                        Map<String, Object> replicas = new TreeMap<>();
                        dir.replicaInfos().forEach((p, info) -> replicas.put(
                                p.toString(), Map.of("size", info.size(), "lag", info.offsetLag())));
                        told.add(Map.of("path", path, "replicas", replicas, "ok", dir.error() == null));
                    });
                    return told;
                }));
        with(ops, "describe_quorum", (admin, a) -> {
            var info = admin.describeMetadataQuorum().quorumInfo().get();
            List<Integer> voters = new ArrayList<>();
            info.voters().forEach(v -> voters.add(v.replicaId()));
            return Map.of(
                    "leader", info.leaderId(), "epoch", info.leaderEpoch(),
                    "high_watermark", info.highWatermark(), "voters", voters);
        });
        with(ops, "describe_features", (admin, a) -> {
            var found = admin.describeFeatures().featureMetadata().get();
            Map<String, Object> told = new TreeMap<>();
            found.finalizedFeatures().forEach((name, range) -> told.put(name, range.maxVersionLevel()));
            return told;
        });
        with(ops, "describe_acls", (admin, a) ->
                admin.describeAcls(AclBindingFilter.ANY).values().get().size());
    }

    private static NewTopic newTopic(JsonNode t) {
        Map<String, String> config = new HashMap<>();
        t.path("config").properties().forEach(e -> config.put(e.getKey(), e.getValue().asText()));
        String name = t.get("name").asText();
        if (t.has("assignment")) {
            Map<Integer, List<Integer>> assignment = new HashMap<>();
            t.get("assignment").properties().forEach(
                    e -> assignment.put(Integer.valueOf(e.getKey()), numbers(e.getValue())));
            return new NewTopic(name, assignment).configs(config);
        }
        Optional<Integer> partitions =
                t.hasNonNull("partitions") ? Optional.of(t.get("partitions").asInt()) : Optional.empty();
        Optional<Short> factor = t.hasNonNull("replication_factor")
                ? Optional.of((short) t.get("replication_factor").asInt())
                : Optional.empty();
        return new NewTopic(name, partitions, factor).configs(config);
    }

    private static Object topic(TopicDescription found) {
        List<Object> partitions = new ArrayList<>();
        for (TopicPartitionInfo p : found.partitions()) {
            Map<String, Object> told = new TreeMap<>();
            told.put("partition", p.partition());
            told.put("leader", p.leader() == null ? -1 : p.leader().id());
            told.put("replicas", p.replicas().stream().map(Node::id).toList());
            told.put("isr", p.isr().stream().map(Node::id).toList());
            partitions.add(told);
        }
        return Map.of(
                "id", found.topicId().toString(), "internal", found.isInternal(), "partitions", partitions);
    }

    private static Map<String, Object> entry(ConfigEntry e) {
        Map<String, Object> told = new TreeMap<>();
        told.put("value", e.value());
        told.put("source", e.source().name());
        told.put("type", e.type().name());
        told.put("read_only", e.isReadOnly());
        told.put("sensitive", e.isSensitive());
        told.put("documented", e.documentation() != null && !e.documentation().isEmpty());
        List<Object> synonyms = new ArrayList<>();
        e.synonyms().forEach(s -> {
            List<Object> one = new ArrayList<>();
            one.add(s.name());
            one.add(s.value());
            one.add(s.source().name());
            synonyms.add(one);
        });
        told.put("synonyms", synonyms);
        return told;
    }

    private static ConfigResource resource(JsonNode r) {
        return new ConfigResource(ConfigResource.Type.valueOf(r.get(0).asText()), r.get(1).asText());
    }

    static String resourceName(ConfigResource r) {
        return r.type().name() + ":" + r.name();
    }

    private static OffsetSpec spec(String at) {
        return switch (at) {
            case "earliest" -> OffsetSpec.earliest();
            case "latest" -> OffsetSpec.latest();
            case "max_timestamp" -> OffsetSpec.maxTimestamp();
            case "earliest_local" -> OffsetSpec.earliestLocal();
            case "latest_tiered" -> OffsetSpec.latestTiered();
            default -> OffsetSpec.forTimestamp(Long.parseLong(at));
        };
    }

    static List<String> names(JsonNode a, String field) {
        List<String> names = new ArrayList<>();
        a.get(field).forEach(n -> names.add(n.asText()));
        return names;
    }

    private static List<Integer> numbers(JsonNode a) {
        List<Integer> numbers = new ArrayList<>();
        a.forEach(n -> numbers.add(n.asInt()));
        return numbers;
    }

    static List<Object> node(Node n) {
        return List.of(n.id(), n.host(), n.port());
    }

    /** Waits for every answer: per thing its result or its error. */
    static <K, V> Map<String, Object> each(
            Map<K, KafkaFuture<V>> futures, Function<K, String> name, Function<V, Object> result)
            throws InterruptedException {
        Map<String, Object> told = new TreeMap<>();
        for (Map.Entry<K, KafkaFuture<V>> one : futures.entrySet()) {
            Map<String, Object> outcome = new HashMap<>();
            try {
                outcome.put("result", result.apply(one.getValue().get()));
            } catch (java.util.concurrent.ExecutionException e) {
                outcome.put("error", Driver.error(e));
            }
            told.put(name.apply(one.getKey()), outcome);
        }
        return told;
    }
}
