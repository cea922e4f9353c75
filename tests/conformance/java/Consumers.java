import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Consumers of both group protocols. A partition is written [topic, number], an offset [topic, number, offset]. */
final class Consumers {
    private static final class Open implements ConsumerRebalanceListener {
        private final KafkaConsumer<byte[], byte[]> client;
        private final List<List<Object>> events = new ArrayList<>();
        private final String protocol;
        private RuntimeException held;

        private Open(Map<String, Object> config) {
            client = new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
            protocol = (String) config.getOrDefault("group.protocol", "classic");
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> places) {
            events.add(List.of("assigned", pairs(places)));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> places) {
            events.add(List.of("revoked", pairs(places)));
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> places) {
            events.add(List.of("lost", pairs(places)));
        }
    }

    private interface Work {
        Object run(KafkaConsumer<byte[], byte[]> consumer, JsonNode arguments) throws Exception;
    }

    private static final Map<String, Open> OPEN = new ConcurrentHashMap<>();
    private static final AtomicInteger NEXT = new AtomicInteger();

    private Consumers() {}

    static void register(Map<String, Driver.Op> ops) {
        ops.put("consumer.open", a -> {
            String handle = "consumer-" + NEXT.incrementAndGet();
            OPEN.put(handle, new Open(Driver.config(a)));
            return handle;
        });
        ops.put("consumer.protocol", a -> of(a).protocol);
        ops.put("consumer.subscribe", Consumers::subscribe);
        ops.put("consumer.poll", Consumers::poll);
        ops.put("consumer.take", Consumers::take);
        ops.put("consumer.events", a -> {
            Open open = of(a);
            List<List<Object>> events = new ArrayList<>(open.events);
            open.events.clear();
            return events;
        });
        ops.put("consumer.close", Consumers::close);
        positions(ops);
        offsets(ops);
    }

    private static void positions(Map<String, Driver.Op> ops) {
        with(ops, "unsubscribe", (c, a) -> {
            c.unsubscribe();
            return null;
        });
        with(ops, "assign", (c, a) -> {
            c.assign(places(a));
            return null;
        });
        with(ops, "seek", (c, a) -> {
            offsets(a).forEach((place, offset) -> c.seek(place, offset.offset()));
            return null;
        });
        with(ops, "seek_to_beginning", (c, a) -> {
            c.seekToBeginning(places(a));
            return null;
        });
        with(ops, "seek_to_end", (c, a) -> {
            c.seekToEnd(places(a));
            return null;
        });
        with(ops, "assignment", (c, a) -> pairs(c.assignment()));
        with(ops, "pause", (c, a) -> {
            c.pause(places(a));
            return null;
        });
        with(ops, "resume", (c, a) -> {
            c.resume(places(a));
            return null;
        });
        with(ops, "position", (c, a) -> {
            List<Object> found = new ArrayList<>();
            for (TopicPartition place : places(a)) {
                found.add(List.of(place.topic(), place.partition(), c.position(place)));
            }
            return found;
        });
    }

    private static void offsets(Map<String, Driver.Op> ops) {
        with(ops, "commit", (c, a) -> {
            if (a.has("offsets")) {
                c.commitSync(offsets(a));
            } else {
                c.commitSync();
            }
            return null;
        });
        with(ops, "committed", (c, a) -> {
            List<Object> found = new ArrayList<>();
            c.committed(new LinkedHashSet<>(places(a))).forEach((place, offset) -> {
                if (offset != null) {
                    found.add(List.of(place.topic(), place.partition(), offset.offset(), offset.metadata()));
                }
            });
            return found;
        });
        with(ops, "beginning_offsets", (c, a) -> triples(c.beginningOffsets(places(a))));
        with(ops, "end_offsets", (c, a) -> triples(c.endOffsets(places(a))));
        with(ops, "offsets_for_times", (c, a) -> {
            Map<TopicPartition, Long> asked = new HashMap<>();
            offsets(a).forEach((place, time) -> asked.put(place, time.offset()));
            List<Object> found = new ArrayList<>();
            c.offsetsForTimes(asked).forEach((place, hit) -> {
                if (hit != null) {
                    found.add(List.of(place.topic(), place.partition(), hit.offset(), hit.timestamp()));
                }
            });
            return found;
        });
        with(ops, "partitions", (c, a) -> partitions(c.partitionsFor(a.get("topic").asText())));
        with(ops, "list_topics", (c, a) -> c.listTopics().keySet());
        with(ops, "member_id", (c, a) -> c.groupMetadata().memberId());
        with(ops, "enforce_rebalance", (c, a) -> {
            c.enforceRebalance();
            return null;
        });
    }

    private static void with(Map<String, Driver.Op> ops, String name, Work work) {
        ops.put("consumer." + name, a -> work.run(of(a).client, a));
    }

    /** What a producer says of a consumer's group, member and generation. */
    static ConsumerGroupMetadata group(String handle) {
        return OPEN.get(handle).client.groupMetadata();
    }

    private static Open of(JsonNode a) {
        Open open = OPEN.get(a.get("handle").asText());
        if (open == null) {
            throw new IllegalStateException(a.get("handle") + " is closed");
        }
        return open;
    }

    private static Object subscribe(JsonNode a) {
        Open open = of(a);
        if (a.has("pattern")) {
            open.client.subscribe(Pattern.compile(a.get("pattern").asText()), open);
        } else if (a.has("server_pattern")) {
            Newer.subscribe(open.client, a.get("server_pattern").asText(), open);
        } else {
            List<String> topics = new ArrayList<>();
            a.get("topics").forEach(t -> topics.add(t.asText()));
            open.client.subscribe(topics, open);
        }
        return null;
    }

    private static Object poll(JsonNode a) {
        List<Object> found = new ArrayList<>();
        for (ConsumerRecord<byte[], byte[]> r : of(a).client.poll(Duration.ofMillis(a.get("timeout_ms").asLong()))) {
            found.add(told(r));
        }
        return found;
    }

    /**
     * At most `count` records, as soon as there are so many or when the time is over. What a poll gave beyond that is
     * sought back to, so that position and commit are those of the records that were handed out.
     */
    private static Object take(JsonNode a) {
        Open open = of(a);
        if (open.held != null) {
            RuntimeException error = open.held;
            open.held = null;
            throw error;
        }
        List<Object> found = new ArrayList<>();
        int count = a.get("count").asInt();
        long end = System.nanoTime() + a.get("timeout_ms").asLong() * 1_000_000;
        Map<TopicPartition, Long> beyond = new HashMap<>();
        do {
            long left = Math.max(0, (end - System.nanoTime()) / 1_000_000);
            try {
                for (ConsumerRecord<byte[], byte[]> r : open.client.poll(Duration.ofMillis(left))) {
                    if (found.size() < count) {
                        found.add(told(r));
                    } else {
                        beyond.putIfAbsent(new TopicPartition(r.topic(), r.partition()), r.offset());
                    }
                }
            } catch (RuntimeException e) {
                if (found.isEmpty()) {
                    throw e;
                }
                open.held = e;
                break;
            }
            beyond.forEach(open.client::seek);
            beyond.clear();
        } while ((count == 0 || found.size() < count) && System.nanoTime() < end);
        return found;
    }

    private static Map<String, Object> told(ConsumerRecord<byte[], byte[]> r) {
        Map<String, Object> told = new TreeMap<>();
        told.put("topic", r.topic());
        told.put("partition", r.partition());
        told.put("offset", r.offset());
        told.put("timestamp", r.timestamp());
        told.put("timestamp_type", r.timestampType().name);
        told.put("key", r.key());
        told.put("value", r.value());
        told.put("leader_epoch", r.leaderEpoch().orElse(null));
        List<Object> headers = new ArrayList<>();
        for (Header h : r.headers()) {
            List<Object> pair = new ArrayList<>();
            pair.add(h.key());
            pair.add(h.value());
            headers.add(pair);
        }
        told.put("headers", headers);
        return told;
    }

    /** leave: "default" as the group's kind has it, "leave", or "remain", which is how a member that died looks. */
    private static Object close(JsonNode a) {
        Open open = of(a);
        String handle = a.get("handle").asText();
        try {
            Newer.close(
                    open.client,
                    Duration.ofMillis(a.path("timeout_ms").asLong(30_000)),
                    a.path("leave").asText("default"));
        } finally {
            OPEN.remove(handle);
            Driver.dropLane(handle);
        }
        return null;
    }

    static byte[] bytes(JsonNode node) throws IOException {
        return node == null || node.isNull() ? null : node.binaryValue();
    }

    static List<TopicPartition> places(JsonNode a) {
        List<TopicPartition> places = new ArrayList<>();
        a.get("partitions").forEach(p -> places.add(new TopicPartition(p.get(0).asText(), p.get(1).asInt())));
        return places;
    }

    static Map<TopicPartition, OffsetAndMetadata> offsets(JsonNode a) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        a.get("offsets").forEach(p -> offsets.put(
                new TopicPartition(p.get(0).asText(), p.get(1).asInt()),
                new OffsetAndMetadata(p.get(2).asLong(), p.path(3).asText(""))));
        return offsets;
    }

    static List<List<Object>> pairs(Collection<TopicPartition> places) {
        List<List<Object>> pairs = new ArrayList<>();
        places.forEach(p -> pairs.add(List.of(p.topic(), p.partition())));
        return pairs;
    }

    private static List<List<Object>> triples(Map<TopicPartition, Long> found) {
        List<List<Object>> triples = new ArrayList<>();
        found.forEach((p, offset) -> triples.add(List.of(p.topic(), p.partition(), offset)));
        return triples;
    }

    static List<Object> partitions(List<PartitionInfo> found) {
        List<Object> told = new ArrayList<>();
        Set<Integer> seen = new LinkedHashSet<>();
        for (PartitionInfo p : found) {
            if (seen.add(p.partition())) {
                told.add(List.of(p.partition(), p.leader() == null ? -1 : p.leader().id(), p.replicas().length));
            }
        }
        return told;
    }
}
