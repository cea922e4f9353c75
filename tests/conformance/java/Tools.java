import com.fasterxml.jackson.databind.JsonNode;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.common.utils.Exit;

/**
 * Kafka's command line tools in this process: their main method is called, what they print belongs to them alone,
 * and their exit ends them and not the process.
 *
 * <p>What a tool does at its end (a producer is flushed and closed) it may have put into a shutdown hook, as has one
 * that runs until it is told to stop (VerifiableConsumer): hooks are kept, and run when the tool ends or is stopped.
 */
final class Tools {
    /** Thrown in place of an exit. Some tools catch it as any Throwable and exit again: the first code counts. */
    private static final class Exited extends Error {
        private static final long serialVersionUID = 1L;

        private Exited() {
            super("exit", null, false, false);
        }

        @Override
        public void printStackTrace(PrintStream out) {}
    }

    private static final class Tool {
        private final ByteArrayOutputStream out = new ByteArrayOutputStream();
        private final ByteArrayOutputStream err = new ByteArrayOutputStream();
        private final Queue<Runnable> hooks = new ConcurrentLinkedQueue<>();
        private final InputStream in;
        private volatile Integer exit;
        private Thread thread;

        private Tool(String input) {
            in = new ByteArrayInputStream(input.getBytes(StandardCharsets.UTF_8));
        }

        /** Each once, whoever comes first. */
        private void runHooks() {
            for (Runnable hook = hooks.poll(); hook != null; hook = hooks.poll()) {
                try {
                    hook.run();
                } catch (Exited e) {
                    // The first code counts.
                }
            }
        }
    }

    private static final InheritableThreadLocal<Tool> CURRENT = new InheritableThreadLocal<>();
    private static final Map<String, Tool> STARTED = new ConcurrentHashMap<>();
    private static final AtomicInteger NEXT = new AtomicInteger();
    private static final long HOOKS_MS_MAX = 30_000;
    private static InputStream ownInput;

    private Tools() {}

    /** Before any tool is loaded: Scala remembers the System.out that it finds at first. */
    static void install() {
        ownInput = System.in;
        PrintStream ownError = System.err;
        // Whatever is printed outside of a tool must not get among the answers.
        System.setOut(new PrintStream(new Split(true, ownError), true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(new Split(false, ownError), true, StandardCharsets.UTF_8));
        System.setIn(new InputStream() {
            @Override
            public int read() throws IOException {
                Tool tool = CURRENT.get();
                return tool == null ? -1 : tool.in.read();
            }

            @Override
            public int read(byte[] into, int offset, int length) throws IOException {
                Tool tool = CURRENT.get();
                return tool == null ? -1 : tool.in.read(into, offset, length);
            }

            @Override
            public int available() throws IOException {
                Tool tool = CURRENT.get();
                return tool == null ? 0 : tool.in.available();
            }
        });
        Exit.setExitProcedure(Tools::exit);
        Exit.setHaltProcedure(Tools::exit);
        Exit.setShutdownHookAdder((name, hook) -> {
            Tool tool = CURRENT.get();
            if (tool != null) {
                tool.hooks.add(hook);
            }
        });
    }

    static InputStream ownInput() {
        return ownInput;
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("tool.run", a -> {
            Tool tool = start(a);
            tool.thread.join(a.path("timeout_ms").asLong(60_000));
            if (tool.thread.isAlive()) {
                StringBuilder where = new StringBuilder();
                for (StackTraceElement frame : tool.thread.getStackTrace()) {
                    where.append("\n  ").append(frame);
                }
                stop(tool);
                throw new IllegalStateException("the tool did not end: " + told(tool) + where);
            }
            return told(tool);
        });
        ops.put("tool.start", a -> {
            String handle = "tool-" + NEXT.incrementAndGet();
            STARTED.put(handle, start(a));
            return handle;
        });
        ops.put("tool.output", a -> told(STARTED.get(a.get("handle").asText())));
        ops.put("tool.stop", a -> {
            Tool tool = STARTED.remove(a.get("handle").asText());
            stop(tool);
            tool.thread.join(a.path("timeout_ms").asLong(60_000));
            if (tool.thread.isAlive()) {
                throw new IllegalStateException("the tool did not end: " + told(tool));
            }
            return told(tool);
        });
    }

    private static void exit(int code, String message) {
        Tool tool = CURRENT.get();
        if (tool != null && tool.exit == null) {
            tool.exit = code;
        }
        throw new Exited();
    }

    private static Tool start(JsonNode a) throws ReflectiveOperationException {
        Tool tool = new Tool(a.path("stdin").asText(""));
        List<String> arguments = new ArrayList<>();
        a.path("arguments").forEach(one -> arguments.add(one.asText()));
        var main = Class.forName(a.get("tool").asText()).getMethod("main", String[].class);
        tool.thread = new Thread(() -> {
            CURRENT.set(tool);
            int code = 0;
            try {
                main.invoke(null, (Object) arguments.toArray(new String[0]));
            } catch (InvocationTargetException e) {
                if (!(e.getCause() instanceof Exited)) {
                    e.getCause().printStackTrace();
                    code = 1;
                }
            } catch (IllegalAccessException e) {
                throw new IllegalStateException(e);
            }
            tool.runHooks();
            System.out.flush();
            System.err.flush();
            if (tool.exit == null) {
                tool.exit = code;
            }
        });
        tool.thread.setDaemon(true);
        tool.thread.start();
        return tool;
    }

    private static void stop(Tool tool) throws InterruptedException {
        if (tool.hooks.isEmpty()) {
            tool.thread.interrupt();
            return;
        }
        Thread thread = new Thread(() -> {
            CURRENT.set(tool);
            tool.runHooks();
        });
        thread.setDaemon(true);
        thread.start();
        thread.join(HOOKS_MS_MAX);
    }

    private static Map<String, Object> told(Tool tool) {
        Map<String, Object> told = new TreeMap<>();
        told.put("exit", tool.exit);
        synchronized (tool.out) {
            told.put("stdout", tool.out.toString(StandardCharsets.UTF_8));
        }
        synchronized (tool.err) {
            told.put("stderr", tool.err.toString(StandardCharsets.UTF_8));
        }
        return told;
    }

    /** To the tool whose thread writes; what belongs to no tool goes to the process's own stderr. */
    private static final class Split extends OutputStream {
        private final boolean isOut;
        private final OutputStream other;

        private Split(boolean isOut, OutputStream other) {
            this.isOut = isOut;
            this.other = other;
        }

        @Override
        public void write(int one) throws IOException {
            write(new byte[] {(byte) one}, 0, 1);
        }

        @Override
        public void write(byte[] from, int offset, int length) throws IOException {
            Tool tool = CURRENT.get();
            OutputStream to = tool == null ? other : isOut ? tool.out : tool.err;
            synchronized (to) {
                to.write(from, offset, length);
            }
        }

        @Override
        public void flush() throws IOException {
            other.flush();
        }
    }
}
