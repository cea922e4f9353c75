/* The client of all rows: librdkafka, driven from C, so that no interpreter stands between it and the brokers.
 *
 *     driver SETTINGS produce|consume|latency|transact|commits|repeat|endure name=value...
 *
 * SETTINGS is a file of librdkafka's settings, name=value a line. Both threads of a producer are the benchmark's: this one
 * hands records over, the other one takes the delivery reports. One line of JSON on stdout; exit code 0 when every record
 * came through, 3 when the time was up, 4 when one was refused, 2 for a wrong call. Times are CLOCK_MONOTONIC's.
 *
 * An ack's latency counts from when its record was *due*, not from when it was handed over: a client that falls behind
 * because the broker holds it up has waited all the same.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "driver.h"

#define POLL_MS 20

const char *topic_name = "bench", *transactional_id = "bench";
long partitions = 1, records = 1, record_bytes = 1024, rate_per_s = 0, skip = 0, timeout_s = 60;
long warm_up = 0, commit_ms = 0, commit_records = 0, abort_every = 0, plain = 0, producers = 1, warm_up_ms = 0,
     measure_ms = 1000;
static int keyed = 0, with_reader = 0;

rd_kafka_t *producer;
static atomic_long acked, refused, consumed, received_bytes;
static atomic_int done;
static atomic_llong first_ns, last_ns;
static long long *ack_ns, *end_to_end_ns;
static char first_error[256];
static double cpu_before_s;

long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND_NS + now.tv_nsec;
}

void sleep_until(long long due_ns) {
    struct timespec at = {due_ns / SECOND_NS, due_ns % SECOND_NS};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {
    }
}

void fail(int code, const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(code);
}

void note_error(int error) {
    if (!first_error[0]) snprintf(first_error, sizeof first_error, "%s", rd_kafka_err2str(error));
}

/* -- settings -------------------------------------------------------------------------------------------------- */

static void on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque);

static void be_quiet(const rd_kafka_t *rk, int level, const char *fac, const char *buf) {
    (void)rk, (void)level, (void)fac, (void)buf;
}

rd_kafka_t *start(int type, const char *file, const char *id, int with_reports) {
    char line[4096], why[512];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    FILE *in = fopen(file, "r");
    if (!in) fail(2, file, strerror(errno));
    while (fgets(line, sizeof line, in)) {
        line[strcspn(line, "\n")] = 0;
        char *value = strchr(line, '=');
        if (!value) continue;
        *value++ = 0;
        const char *name = line;
        int for_producer = !strncmp(name, "producer:", 9), for_consumer = !strncmp(name, "consumer:", 9);
        if ((for_producer && type != RD_KAFKA_PRODUCER) || (for_consumer && type != RD_KAFKA_CONSUMER)) continue;
        if (for_producer || for_consumer) name += 9;
        if (rd_kafka_conf_set(conf, name, value, why, sizeof why) != RD_KAFKA_CONF_OK) fail(2, file, why);
    }
    fclose(in);
    if (id && rd_kafka_conf_set(conf, "transactional.id", id, why, sizeof why) != RD_KAFKA_CONF_OK) fail(2, file, why);
    rd_kafka_conf_set_log_cb(conf, be_quiet);
    if (type == RD_KAFKA_PRODUCER && with_reports) rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    rd_kafka_t *rk = rd_kafka_new(type, conf, why, sizeof why);
    if (!rk) fail(2, "librdkafka", why);
    return rk;
}

/* -- producing ------------------------------------------------------------------------------------------------- */

static void on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
    (void)rk, (void)opaque;
    if (message->err) {
        note_error(message->err);
        atomic_fetch_add(&refused, 1);
        return;
    }
    if (message->_private) {
        long long now = now_ns();
        long index = atomic_load(&acked);
        if (ack_ns && index < records) ack_ns[index] = now - (long long)(intptr_t)message->_private;
        atomic_store(&last_ns, now);
    }
    atomic_fetch_add(&acked, 1);
}

static void *take_reports(void *unused) {
    (void)unused;
    while (!atomic_load(&done)) rd_kafka_poll(producer, POLL_MS);
    return NULL;
}

void take_reports_aside(void) {
    static pthread_t reports;
    pthread_create(&reports, NULL, take_reports, NULL);
}

void check_refused(void) {
    if (atomic_load(&refused)) fail(4, "a record was refused", first_error);
}

void send_one(rd_kafka_topic_t *topic, long number, char *payload, int flags, void *opaque) {
    long long key = number * 2654435761LL; /* spreads over partitions; what it is does not matter */
    int32_t partition = partitions == 1 ? 0 : RD_KAFKA_PARTITION_UA;
    if (rd_kafka_produce(topic, partition, flags | RD_KAFKA_MSG_F_BLOCK, payload, (size_t)record_bytes,
                         keyed ? &key : NULL, keyed ? sizeof key : 0, opaque)) {
        note_error(rd_kafka_last_error());
        atomic_fetch_add(&refused, 1);
    }
}

static void wait_until(atomic_long *count, long wanted, long long deadline_ns) {
    struct timespec nap = {0, 200000};
    while (atomic_load(count) + atomic_load(&refused) < wanted) {
        if (now_ns() > deadline_ns) {
            fprintf(stderr, "%ld of %ld records within %ld s%s%s\n", atomic_load(count), wanted, timeout_s,
                    first_error[0] ? ": " : "", first_error);
            exit(3);
        }
        nanosleep(&nap, NULL);
    }
}

/* -- consuming ------------------------------------------------------------------------------------------------- */

static void on_record(rd_kafka_message_t *message, void *opaque) {
    (void)opaque;
    if (message->err) {
        note_error(message->err);
        return;
    }
    long index = atomic_load(&consumed);
    if (index == 0) atomic_store(&first_ns, now_ns());
    if (end_to_end_ns && index < records && message->len >= sizeof(long long)) {
        long long due;
        memcpy(&due, message->payload, sizeof due);
        end_to_end_ns[index] = now_ns() - due;
    }
    atomic_fetch_add(&received_bytes, (long)(message->len + message->key_len));
    atomic_store(&consumed, index + 1);
}

rd_kafka_queue_t *open_queue(const char *file, int from_now_on) {
    rd_kafka_t *rk = start(RD_KAFKA_CONSUMER, file, NULL, 0);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, topic_name, NULL);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(rk);
    for (int32_t partition = 0; partition < partitions; partition++) {
        int64_t low = 0, high = RD_KAFKA_OFFSET_BEGINNING;
        if (from_now_on) {
            int error = rd_kafka_query_watermark_offsets(rk, topic_name, partition, &low, &high, 30000);
            if (error) fail(3, "end of a partition", rd_kafka_err2str(error));
        }
        if (rd_kafka_consume_start_queue(topic, partition, high, queue))
            fail(3, "partition", rd_kafka_err2str(rd_kafka_last_error()));
    }
    return queue;
}

static void *read_along(void *queue) {
    while (!atomic_load(&done)) rd_kafka_consume_callback_queue(queue, POLL_MS, on_record, NULL);
    return NULL;
}

/* -- what is told ---------------------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b) {
    long long x = *(const long long *)a, y = *(const long long *)b;
    return (x > y) - (x < y);
}

void print_latencies(const char *name, long long *values, long count) {
    if (count < 1) return;
    qsort(values, (size_t)count, sizeof *values, by_size);
    static const double at[] = {0.5, 0.99, 0.999, 1};
    printf(", \"%s\": [", name);
    for (int i = 0; i < 4; i++) {
        long index = (long)(at[i] * (double)count);
        printf("%s%.3f", i ? ", " : "", (double)values[index < count ? index : count - 1] / 1e6);
    }
    printf("]");
}

static double cpu_now_s(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

/* What was used before is not told. */
void forget_cpu(void) { cpu_before_s = cpu_now_s(); }

void print_result(long count, long long begin, long long end) {
    double cpu_s = cpu_now_s() - cpu_before_s;
    printf("{\"version\": \"%s\", \"records\": %ld, \"bytes\": %ld, \"begin_ns\": %lld, \"end_ns\": %lld, \"cpu_s\": %.3f",
           rd_kafka_version_str(), count, count * record_bytes, begin, end, cpu_s);
}

static int produce(const char *file) {
    producer = start(RD_KAFKA_PRODUCER, file, NULL, 1);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(producer, topic_name, NULL);
    take_reports_aside();
    char *payload = malloc((size_t)record_bytes + 1);
    memset(payload, 'x', (size_t)record_bytes);
    long long deadline = now_ns() + timeout_s * SECOND_NS;
    send_one(topic, 0, payload, 0, NULL); /* connections are made and metadata known before the clock runs */
    wait_until(&acked, 1, deadline);
    long long begin = now_ns();
    for (long number = 1; number <= records; number++) send_one(topic, number, payload, 0, &payload);
    wait_until(&acked, records + 1, deadline);
    long long end = now_ns();
    if (atomic_load(&refused)) fail(4, "a record was refused", first_error);
    print_result(records, begin, end);
    printf("}\n");
    return 0;
}

static int consume(const char *file) {
    rd_kafka_queue_t *queue = open_queue(file, 0);
    long long begin = now_ns(), deadline = begin + timeout_s * SECOND_NS;
    while (atomic_load(&consumed) < records) {
        rd_kafka_consume_callback_queue(queue, POLL_MS, on_record, NULL);
        if (now_ns() > deadline) wait_until(&consumed, records, deadline);
    }
    long long end = now_ns();
    /* From the first record on: until then librdkafka asks for leaders, and waits up to half a second before it asks again,
     * whatever the broker. The records of the first answer are counted and are a few of very many. */
    begin = atomic_load(&first_ns);
    print_result(atomic_load(&consumed), begin, end);
    printf(", \"received_bytes\": %ld}\n", atomic_load(&received_bytes));
    return 0;
}

static int latency(const char *file) {
    if (record_bytes < (long)sizeof(long long)) fail(2, "record_bytes", "a record has its time in it: at least 8");
    pthread_t reader;
    ack_ns = calloc((size_t)records, sizeof *ack_ns);
    producer = start(RD_KAFKA_PRODUCER, file, NULL, 1);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(producer, topic_name, NULL);
    take_reports_aside();
    char *payload = malloc((size_t)record_bytes);
    memset(payload, 'x', (size_t)record_bytes);
    send_one(topic, 0, payload, RD_KAFKA_MSG_F_COPY, NULL);
    wait_until(&acked, 1, now_ns() + timeout_s * SECOND_NS);
    atomic_store(&acked, 0);
    if (with_reader) {
        end_to_end_ns = calloc((size_t)records, sizeof *end_to_end_ns);
        pthread_create(&reader, NULL, read_along, open_queue(file, 1));
    }
    long long begin = now_ns() + SECOND_NS / 10;
    for (long number = 0; number < records; number++) {
        long long due = begin + number * SECOND_NS / rate_per_s;
        sleep_until(due);
        memcpy(payload, &due, sizeof due);
        send_one(topic, number, payload, RD_KAFKA_MSG_F_COPY, (void *)(intptr_t)due);
    }
    long long deadline = now_ns() + timeout_s * SECOND_NS;
    wait_until(&acked, records, deadline);
    if (with_reader) wait_until(&consumed, records, deadline);
    if (atomic_load(&refused)) fail(4, "a record was refused", first_error);
    long long end = atomic_load(&last_ns);
    print_result(records, begin, end);
    /* The first ones find caches and windows cold; reports and records come in their order, so skipping is by place. */
    print_latencies("ack_ms", ack_ns + skip, records - skip);
    if (with_reader) print_latencies("end_to_end_ms", end_to_end_ns + skip, records - skip);
    printf("}\n");
    return 0;
}

int main(int count, char **words) {
    static const struct { const char *name; long *value; } numbers[] = {
        {"partitions", &partitions}, {"records", &records}, {"record_bytes", &record_bytes},
        {"rate_per_s", &rate_per_s}, {"skip", &skip}, {"timeout_s", &timeout_s},
        {"warm_up", &warm_up}, {"commit_ms", &commit_ms}, {"commit_records", &commit_records},
        {"abort_every", &abort_every}, {"plain", &plain}, {"producers", &producers}, {"warm_up_ms", &warm_up_ms},
        {"measure_ms", &measure_ms},
    };
    if (count < 3) fail(2, "call", "driver SETTINGS produce|consume|latency name=value...");
    for (int i = 3; i < count; i++) {
        char *value = strchr(words[i], '=');
        if (!value) fail(2, words[i], "want name=value");
        *value++ = 0;
        int known = 1;
        if (!strcmp(words[i], "topic")) topic_name = value;
        else if (!strcmp(words[i], "transactional_id")) transactional_id = value;
        else if (!strcmp(words[i], "keyed")) keyed = atoi(value);
        else if (!strcmp(words[i], "with_reader")) with_reader = atoi(value);
        else {
            known = 0;
            for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++)
                if (!strcmp(words[i], numbers[n].name)) *numbers[n].value = atol(value), known = 1;
        }
        if (!known) fail(2, words[i], "no such argument");
    }
    int code = 2;
    if (!strcmp(words[2], "produce")) code = produce(words[1]);
    else if (!strcmp(words[2], "consume")) code = consume(words[1]);
    else if (!strcmp(words[2], "latency") && rate_per_s > 0 && skip < records) code = latency(words[1]);
    else if (!strcmp(words[2], "transact")) code = transact(words[1]);
    else if (!strcmp(words[2], "commits") && rate_per_s > 0 && skip < records) code = commits(words[1]);
    else if (!strcmp(words[2], "repeat") && producers > 0) code = repeat(words[1]);
    else if (!strcmp(words[2], "endure") && rate_per_s > 0) code = endure(words[1]);
    else fail(2, words[2], "produce, consume, or latency with a rate_per_s and fewer to skip than records, or one of transactions: see transactions.c");
    fflush(stdout);
    _Exit(code); /* librdkafka's threads are not waited for: closing politely is not what is measured */
}
