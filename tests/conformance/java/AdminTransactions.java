import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.common.KafkaFuture;

/** The admin client's calls on transactions. */
final class AdminTransactions {
    private interface Work {
        Object run(Admin admin, JsonNode arguments) throws Exception;
    }

    private AdminTransactions() {}

    static void register(Map<String, Driver.Op> ops) {
        with(ops, "list_transactions", (admin, a) -> {
            List<Object> told = new ArrayList<>();
            for (TransactionListing t : admin.listTransactions().all().get()) {
                told.add(List.of(t.transactionalId(), t.state().toString()));
            }
            return told;
        });
        with(ops, "describe_transactions", (admin, a) -> {
            var result = admin.describeTransactions(Admins.names(a, "ids"));
            Map<String, Object> told = new TreeMap<>();
            for (String id : Admins.names(a, "ids")) {
                Map<String, KafkaFuture<TransactionDescription>> one =
                        Map.of(id, result.description(id));
                told.putAll(Admins.each(one, String::valueOf, AdminTransactions::transaction));
            }
            return told;
        });
        with(ops, "describe_producers", (admin, a) -> {
            List<Object> told = new ArrayList<>();
            for (var partition : admin.describeProducers(Consumers.places(a)).all().get().values()) {
                for (ProducerState p : partition.activeProducers()) {
                    Map<String, Object> one = new TreeMap<>();
                    one.put("last_sequence", p.lastSequence());
                    var start = p.currentTransactionStartOffset();
                    one.put("start", start.isPresent() ? start.getAsLong() : null);
                    told.add(one);
                }
            }
            return told;
        });
        with(ops, "fence_producers", (admin, a) -> Admins.each(
                admin.fenceProducers(Admins.names(a, "ids")).fencedProducers(), String::valueOf, v -> true));
    }

    private static Map<String, Object> transaction(TransactionDescription found) {
        return Map.of(
                "state", found.state().toString(),
                "timeout_ms", found.transactionTimeoutMs(),
                "open", found.transactionStartTimeMs().isPresent(),
                "partitions", Consumers.pairs(found.topicPartitions()));
    }

    private static void with(Map<String, Driver.Op> ops, String name, Work work) {
        ops.put("admin." + name, a -> work.run(Admins.of(a), a));
    }
}
