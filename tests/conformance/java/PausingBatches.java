package org.apache.kafka.clients.producer.internals;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** Holds a thread that has found nothing incomplete, once each time it is armed. Its superclass is its package's own. */
public final class PausingBatches extends IncompleteBatches {
    private static final long WAIT_S = 60;

    private final Thread paused;
    private volatile CountDownLatch reached = new CountDownLatch(0);
    private volatile CountDownLatch go = new CountDownLatch(0);

    public PausingBatches(Thread paused) {
        this.paused = paused;
    }

    public void arm() {
        go = new CountDownLatch(1);
        reached = new CountDownLatch(1);
    }

    public void awaitPaused() throws InterruptedException {
        if (!reached.await(WAIT_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException("the I/O thread does not look for incomplete batches");
        }
    }

    public void goOn() {
        go.countDown();
    }

    @Override
    public boolean isEmpty() {
        boolean found = super.isEmpty();
        CountDownLatch here = reached;
        if (found && here.getCount() > 0 && Thread.currentThread() == paused) {
            here.countDown();
            try {
                go.await(WAIT_S, TimeUnit.SECONDS);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }
        return found;
    }
}
