import com.fasterxml.jackson.databind.JsonNode;
import java.lang.reflect.Field;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.internals.PausingBatches;
import org.apache.kafka.clients.producer.internals.TransactionManager;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A commit that overtakes its records, as it does now and then where many producers share few cores.
 *
 * <p>The client's I/O thread asks whether batches are unsent, and then takes the lock under which it looks for the next
 * transactional request (Sender.maybeSendAndPollTransactionalRequest). Here it is held between the two while a
 * transaction is begun, a record sent and the commit asked for.
 */
final class Overtaking {
    private Overtaking() {}

    static void register(Map<String, Driver.Op> ops) {
        ops.put("overtaking.commit", Overtaking::commit);
    }

    /** So many transactions with a record each, behind one another, each committed before its record is sent. */
    private static Object commit(JsonNode a) throws Exception {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", a.get("bootstrap").asText());
        settings.put("transactional.id", a.get("name").asText());
        settings.put("linger.ms", "0");
        int transactions = a.get("transactions").asInt();
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            producer.partitionsFor(a.get("topic").asText());
            PausingBatches pausing = new PausingBatches((Thread) field(KafkaProducer.class, "ioThread").get(producer));
            Object accumulator = field(KafkaProducer.class, "accumulator").get(producer);
            field(accumulator.getClass(), "incomplete").set(accumulator, pausing);
            TransactionManager manager =
                    (TransactionManager) field(KafkaProducer.class, "transactionManager").get(producer);
            for (int number = 0; number < transactions; number++) {
                pausing.arm();
                producer.flush(); // wakes the thread
                pausing.awaitPaused();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(
                        a.get("topic").asText(), null, null, Integer.toString(number).getBytes()));
                manager.beginCommit();
                pausing.goOn();
                producer.commitTransaction(); // waits for what has begun
            }
        }
        return "done";
    }

    private static Field field(Class<?> of, String name) throws NoSuchFieldException {
        Field found = of.getDeclaredField(name);
        found.setAccessible(true);
        return found;
    }
}
