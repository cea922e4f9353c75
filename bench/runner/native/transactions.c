/* What the driver does with transactions. Its words, and what each takes beside topic, partitions and record_bytes:
 *
 *     transact  records, warm_up: so many, as fast as it goes; a commit when commit_ms have passed since the begin, or
 *               after commit_records; every abort_every-th is aborted; with plain=1 none of it, an idempotent producer
 *     commits   records: transactions of a record in each partition, rate_per_s of them, the first skip ones not told;
 *               how long a commit takes of which all records are acknowledged, and all of it from when it was due. Where
 *               the rate is not reached it ends after twice the time
 *     repeat    producers: so many at once, each with transactions of one record back to back, for warm_up_ms and then
 *               measure_ms
 *     endure    as commits, whatever happens, until it is killed; a line for each event (bench/runner/pauses.py)
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define MAX_COMMITS 1000000
#define WHOLE_MS ((int)(timeout_s * 1000))

static void need(const char *what, rd_kafka_error_t *error) {
    if (error) fail(4, what, rd_kafka_error_string(error));
}

static char *payload_of(long size) {
    char *payload = malloc((size_t)size + 1);
    memset(payload, 'x', (size_t)size);
    return payload;
}

static void flush(rd_kafka_t *rk) {
    int error = rd_kafka_flush(rk, WHOLE_MS);
    if (error) fail(3, "flush", rd_kafka_err2str(error));
}

static void put(rd_kafka_topic_t *topic, int32_t partition, const char *payload) {
    if (rd_kafka_produce(topic, partition, RD_KAFKA_MSG_F_BLOCK | RD_KAFKA_MSG_F_COPY, (void *)(uintptr_t)payload,
                         (size_t)record_bytes, NULL, 0, NULL))
        fail(4, "a record", rd_kafka_err2str(rd_kafka_last_error()));
}

/* -- as fast as it goes ---------------------------------------------------------------------------------------- */

static long long *commit_ns, *whole_ns;
static long told, committed_records, committed_transactions, begun_transactions;

static void write_all(rd_kafka_topic_t *topic, char *payload, long count) {
    long number = 0;
    while (number < count) {
        long first = number;
        if (!plain) need("begin", rd_kafka_begin_transaction(producer));
        long long begun = now_ns(), until = commit_ms ? begun + commit_ms * SECOND_NS / 1000 : 0;
        while (number < count && (!commit_records || number - first < commit_records) && (!until || now_ns() < until))
            send_one(topic, number++, payload, 0, NULL);
        if (plain) continue;
        if (abort_every && ++begun_transactions % abort_every == 0) {
            flush(producer); /* what is aborted shall be in the log, and not thrown away here */
            need("abort", rd_kafka_abort_transaction(producer, WHOLE_MS));
            continue;
        }
        long long asked = now_ns();
        need("commit", rd_kafka_commit_transaction(producer, WHOLE_MS));
        long long end = now_ns();
        committed_records += number - first;
        committed_transactions++;
        if (told < MAX_COMMITS) {
            commit_ns[told] = end - asked;
            whole_ns[told++] = end - begun;
        }
    }
    if (plain) flush(producer);
    check_refused();
}

static void print_transactions(long skipped) {
    printf(", \"transactions\": %ld, \"committed\": %ld", committed_transactions, committed_records);
    if (told > skipped) {
        print_latencies("commit_ms", commit_ns + skipped, told - skipped);
        print_latencies("transaction_ms", whole_ns + skipped, told - skipped);
    }
    printf("}\n");
}

static void start_one(const char *file) {
    commit_ns = calloc(MAX_COMMITS, sizeof *commit_ns);
    whole_ns = calloc(MAX_COMMITS, sizeof *whole_ns);
    producer = start(RD_KAFKA_PRODUCER, file, plain ? NULL : transactional_id, 1);
    take_reports_aside();
    if (!plain) need("init", rd_kafka_init_transactions(producer, WHOLE_MS));
}

int transact(const char *file) {
    start_one(file);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(producer, topic_name, NULL);
    char *payload = payload_of(record_bytes);
    write_all(topic, payload, warm_up > 0 ? warm_up : 1);
    told = committed_records = committed_transactions = begun_transactions = 0;
    forget_cpu();
    long long begin = now_ns();
    write_all(topic, payload, records);
    print_result(records, begin, now_ns());
    print_transactions(0);
    return 0;
}

int commits(const char *file) {
    start_one(file);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(producer, topic_name, NULL);
    char *payload = payload_of(record_bytes);
    forget_cpu();
    long long begin = now_ns(), until = begin + 2 * records * SECOND_NS / rate_per_s;
    for (long number = 0; number < records && now_ns() < until; number++) {
        long long due = begin + number * SECOND_NS / rate_per_s;
        sleep_until(due);
        need("begin", rd_kafka_begin_transaction(producer));
        for (int32_t partition = 0; partition < partitions; partition++) put(topic, partition, payload);
        flush(producer);
        long long asked = now_ns();
        need("commit", rd_kafka_commit_transaction(producer, WHOLE_MS));
        long long end = now_ns();
        if (told < MAX_COMMITS) {
            commit_ns[told] = end - asked;
            whole_ns[told++] = end - due;
        }
        committed_transactions++;
        committed_records += partitions;
    }
    check_refused();
    print_result(committed_records, begin, now_ns());
    print_transactions(skip < told ? skip : 0);
    return 0;
}

/* -- one record each, over and over ---------------------------------------------------------------------------- */

static pthread_barrier_t all_ready;
static atomic_llong measured_from = -1, measured_until = -1;

struct one {
    const char *file;
    long number, count, room;
    long long *whole_ns;
};

static void *go_on(void *given) {
    struct one *self = given;
    char id[600];
    snprintf(id, sizeof id, "%s-%ld", transactional_id, self->number);
    rd_kafka_t *rk = start(RD_KAFKA_PRODUCER, self->file, id, 0);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, topic_name, NULL);
    char *payload = payload_of(record_bytes);
    need("init", rd_kafka_init_transactions(rk, WHOLE_MS));
    pthread_barrier_wait(&all_ready);
    for (long number = self->number;; number++) {
        long long begun = now_ns(), until = atomic_load(&measured_until);
        if (until >= 0 && begun >= until) return NULL;
        need("begin", rd_kafka_begin_transaction(rk));
        put(topic, (int32_t)(number % partitions), payload);
        need("commit", rd_kafka_commit_transaction(rk, WHOLE_MS));
        long long end = now_ns(), from = atomic_load(&measured_from);
        /* The one that is under way at the end counts in no one's time. */
        if (from < 0 || begun < from || end > atomic_load(&measured_until)) continue;
        if (self->count == self->room) {
            self->room = self->room ? 2 * self->room : 256;
            self->whole_ns = realloc(self->whole_ns, (size_t)self->room * sizeof *self->whole_ns);
        }
        self->whole_ns[self->count++] = end - begun;
    }
}

int repeat(const char *file) {
    struct one *all = calloc((size_t)producers, sizeof *all);
    pthread_t *threads = calloc((size_t)producers, sizeof *threads);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 * 1024);
    pthread_barrier_init(&all_ready, NULL, (unsigned)producers + 1);
    for (long n = 0; n < producers; n++) {
        all[n].file = file;
        all[n].number = n;
        if (pthread_create(&threads[n], &small, go_on, &all[n])) fail(2, "a thread", "there are too many");
    }
    pthread_barrier_wait(&all_ready);
    sleep_until(now_ns() + warm_up_ms * SECOND_NS / 1000);
    forget_cpu();
    long long begin = now_ns(), end = begin + measure_ms * SECOND_NS / 1000;
    atomic_store(&measured_until, end);
    atomic_store(&measured_from, begin);
    long long given_up = end + timeout_s * SECOND_NS;
    sleep_until(end);
    long total = 0;
    for (long n = 0; n < producers; n++) {
        struct timespec at;
        clock_gettime(CLOCK_REALTIME, &at);
        at.tv_sec += (given_up - now_ns()) / SECOND_NS + 1;
        if (pthread_timedjoin_np(threads[n], NULL, &at)) fail(3, "a producer", "does not come to its end");
        total += all[n].count;
    }
    whole_ns = malloc((size_t)(total ? total : 1) * sizeof *whole_ns);
    for (long n = 0; n < producers; n++) {
        if (all[n].count) memcpy(whole_ns + told, all[n].whole_ns, (size_t)all[n].count * sizeof *whole_ns);
        told += all[n].count;
    }
    print_result(total, begin, end);
    printf(", \"transactions\": %ld, \"committed\": %ld", total, total);
    print_latencies("transaction_ms", whole_ns, total);
    printf("}\n");
    return 0;
}

/* -- whatever happens ------------------------------------------------------------------------------------------ */

static void tell(const char *word, const char *why) {
    printf(why ? "%s %lld %s\n" : "%s %lld\n", word, now_ns(), why);
    fflush(stdout);
}

static void on_read(rd_kafka_message_t *message, void *opaque) {
    (void)opaque;
    if (!message->err) tell("read", NULL);
}

static void *read_on(void *queue) {
    for (;;) rd_kafka_consume_callback_queue(queue, 20, on_read, NULL);
    return NULL;
}

static rd_kafka_topic_t *begin_anew(const char *file) {
    producer = start(RD_KAFKA_PRODUCER, file, transactional_id, 0);
    for (;;) {
        rd_kafka_error_t *error = rd_kafka_init_transactions(producer, -1);
        if (!error) return rd_kafka_topic_new(producer, topic_name, NULL);
        if (!rd_kafka_error_is_retriable(error)) fail(4, "init", rd_kafka_error_string(error));
        rd_kafka_error_destroy(error);
    }
}

/* 1 when all is well, 0 when the transaction was aborted, -1 when this producer has come to its end. */
static int settle(rd_kafka_error_t *error) {
    if (!error) return 1;
    int fatal = rd_kafka_error_is_fatal(error), abortable = rd_kafka_error_txn_requires_abort(error);
    char why[256];
    snprintf(why, sizeof why, "%s", rd_kafka_error_string(error));
    rd_kafka_error_destroy(error);
    if (fatal || !abortable) {
        tell("fatal", why);
        return -1;
    }
    tell("aborted", why);
    while ((error = rd_kafka_abort_transaction(producer, -1))) {
        int again = rd_kafka_error_is_retriable(error);
        snprintf(why, sizeof why, "%s", rd_kafka_error_string(error));
        rd_kafka_error_destroy(error);
        if (again) continue;
        tell("fatal", why);
        return -1;
    }
    return 0;
}

static int one_transaction(rd_kafka_topic_t *topic, const char *payload) {
    int state = settle(rd_kafka_begin_transaction(producer));
    if (state < 1) return state;
    for (int32_t partition = 0; partition < partitions; partition++)
        /* Refused while the transaction is to be aborted: the commit says so. */
        if (rd_kafka_produce(topic, partition, RD_KAFKA_MSG_F_BLOCK | RD_KAFKA_MSG_F_COPY, (void *)(uintptr_t)payload,
                             (size_t)record_bytes, NULL, 0, NULL))
            break;
    rd_kafka_error_t *error;
    while ((error = rd_kafka_commit_transaction(producer, -1)) && rd_kafka_error_is_retriable(error))
        rd_kafka_error_destroy(error);
    state = settle(error);
    if (state == 1) tell("commit", NULL);
    return state;
}

int endure(const char *file) {
    rd_kafka_topic_t *topic = begin_anew(file);
    char *payload = payload_of(record_bytes);
    pthread_t reader;
    if (one_transaction(topic, payload) != 1) fail(4, "endure", "the first transaction did not come through");
    pthread_create(&reader, NULL, read_on, open_queue(file, 1));
    for (long long due = now_ns();; due += SECOND_NS / rate_per_s) {
        /* After a pause it does not catch up: a transaction that is late is due now. */
        if (due < now_ns()) due = now_ns();
        sleep_until(due);
        if (one_transaction(topic, payload) < 0) topic = begin_anew(file);
    }
    return 0;
}
