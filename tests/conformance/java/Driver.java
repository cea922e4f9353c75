import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.RejectedExecutionException;
import org.apache.kafka.common.protocol.Errors;

/**
 * Kafka's Java clients and tools, driven from outside: one line of JSON per command on stdin, one per answer on
 * stdout, in one process for many tests, since a JVM takes a second to start and several to warm up.
 *
 * <p>Command: {"id": 1, "op": "consumer.poll", "handle": "c1", ...}. Answer: {"id": 1, "result": ...} or
 * {"id": 1, "error": {"name", "code", "type", "message"}}, with name and code as Kafka's protocol has them.
 * Commands run side by side, those that name the same handle one after the other (a KafkaConsumer belongs to one
 * thread at a time, and records are sent in the order of their commands). Bytes are base64. End of stdin ends the process.
 */
public final class Driver {
    /** An operation: arguments in, anything that Jackson can write out. */
    interface Op {
        Object run(JsonNode arguments) throws Exception;
    }

    /** A result that takes its time: the next command on the same handle need not wait for it. */
    interface Later {
        Object get() throws Exception;
    }

    static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, Op> OPS = new HashMap<>();
    private static final Map<String, ExecutorService> LANES = new ConcurrentHashMap<>();
    private static final ExecutorService FREE = Executors.newCachedThreadPool(Driver::daemon);

    private Driver() {}

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        Tools.install();
        OPS.put("ping", a -> "pong");
        Producers.register(OPS);
        Transactions.register(OPS);
        Overtaking.register(OPS);
        Consumers.register(OPS);
        Admins.register(OPS);
        Tools.register(OPS);
        BufferedReader commands = new BufferedReader(new InputStreamReader(Tools.ownInput(), StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            JsonNode command = JSON.readTree(line);
            try {
                lane(command).execute(() -> answer(command, answers));
            } catch (RejectedExecutionException e) {
                // Its handle was closed this moment: the operation says so.
                FREE.execute(() -> answer(command, answers));
            }
        }
        // Whoever started us is gone or has closed us: clients need no farewell.
        Runtime.getRuntime().halt(0);
    }

    private static ExecutorService lane(JsonNode command) {
        String op = command.get("op").asText();
        if (!command.has("handle") || op.startsWith("tool.")) {
            return FREE;
        }
        return LANES.computeIfAbsent(
                command.get("handle").asText(), k -> Executors.newSingleThreadExecutor(Driver::daemon));
    }

    /** Forget the lane of a handle that is closed; what is queued on it still runs. */
    static void dropLane(String handle) {
        ExecutorService lane = LANES.remove(handle);
        if (lane != null) {
            lane.shutdown();
        }
    }

    private static Thread daemon(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        return thread;
    }

    private static void answer(JsonNode command, PrintStream answers) {
        try {
            Op op = OPS.get(command.get("op").asText());
            if (op == null) {
                throw new IllegalArgumentException("no operation " + command.get("op"));
            }
            Object result = op.run(command);
            if (result instanceof Later later) {
                FREE.execute(() -> {
                    try {
                        reply(command, "result", later.get(), answers);
                    } catch (Throwable e) {
                        reply(command, "error", error(e), answers);
                    }
                });
            } else {
                reply(command, "result", result, answers);
            }
        } catch (Throwable e) {
            reply(command, "error", error(e), answers);
        }
    }

    private static void reply(JsonNode command, String name, Object value, PrintStream answers) {
        ObjectNode reply = JSON.createObjectNode();
        reply.set("id", command.get("id"));
        reply.set(name, JSON.valueToTree(value));
        byte[] line = (reply + "\n").getBytes(StandardCharsets.UTF_8);
        synchronized (answers) {
            answers.write(line, 0, line.length);
            answers.flush();
        }
    }

    /** An exception in the protocol's own terms. */
    static Map<String, Object> error(Throwable thrown) {
        Throwable e = thrown instanceof ExecutionException && thrown.getCause() != null ? thrown.getCause() : thrown;
        Errors code = Errors.forException(e);
        Map<String, Object> told = new TreeMap<>();
        told.put("name", code.name());
        told.put("code", code.code());
        told.put("type", e.getClass().getSimpleName());
        told.put("message", String.valueOf(e.getMessage()));
        return told;
    }

    /** A client's settings, as they were sent. */
    static Map<String, Object> config(JsonNode arguments, String... defaults) {
        Map<String, Object> config = new HashMap<>();
        for (int i = 0; i < defaults.length; i += 2) {
            config.put(defaults[i], defaults[i + 1]);
        }
        arguments.path("config").properties().forEach(e -> config.put(e.getKey(), e.getValue().asText()));
        return config;
    }
}
