/* What the parts of the driver share: arguments, the clock, starting a client, telling results. */
#ifndef BENCH_DRIVER_H
#define BENCH_DRIVER_H

#include "rdkafka_abi.h"

#define SECOND_NS 1000000000LL

extern const char *topic_name, *transactional_id;
extern long partitions, records, record_bytes, rate_per_s, skip, timeout_s;
extern long warm_up, commit_ms, commit_records, abort_every, plain, producers, warm_up_ms, measure_ms;
extern rd_kafka_t *producer;

long long now_ns(void);
void sleep_until(long long due_ns);
void fail(int code, const char *what, const char *why);
void note_error(int error);

/* `id`: its transactional id, or NULL. Without reports nobody has to take them. */
rd_kafka_t *start(int type, const char *file, const char *id, int with_reports);
void take_reports_aside(void);
void check_refused(void);
void send_one(rd_kafka_topic_t *topic, long number, char *payload, int flags, void *opaque);
rd_kafka_queue_t *open_queue(const char *file, int from_now_on);

void forget_cpu(void);
void print_result(long count, long long begin, long long end);
void print_latencies(const char *name, long long *values, long count);

int transact(const char *file);
int commits(const char *file);
int repeat(const char *file);
int endure(const char *file);

#endif
