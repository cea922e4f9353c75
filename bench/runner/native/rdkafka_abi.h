/* The part of librdkafka's C interface that the driver calls.
 *
 * Declared here because the library that comes with confluent-kafka's wheel, which every checkout has, has no header beside
 * it. Only the message has a layout; it is part of librdkafka's stable binary interface since 0.9.
 */
#ifndef BENCH_RDKAFKA_ABI_H
#define BENCH_RDKAFKA_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_topic_conf_s rd_kafka_topic_conf_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;

typedef struct rd_kafka_message_s {
    int err;
    rd_kafka_topic_t *rkt;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *_private; /* in a delivery report: what was handed to rd_kafka_produce */
} rd_kafka_message_t;

enum { RD_KAFKA_PRODUCER = 0, RD_KAFKA_CONSUMER = 1 };
enum { RD_KAFKA_CONF_OK = 0 };
enum { RD_KAFKA_MSG_F_COPY = 2, RD_KAFKA_MSG_F_BLOCK = 4 };
#define RD_KAFKA_PARTITION_UA ((int32_t)-1)
#define RD_KAFKA_OFFSET_BEGINNING (-2)

const char *rd_kafka_version_str(void);
const char *rd_kafka_err2str(int err);
int rd_kafka_last_error(void);

rd_kafka_conf_t *rd_kafka_conf_new(void);
int rd_kafka_conf_set(rd_kafka_conf_t *conf, const char *name, const char *value, char *errstr, size_t errstr_size);
void rd_kafka_conf_set_dr_msg_cb(rd_kafka_conf_t *conf,
                                 void (*cb)(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque));
void rd_kafka_conf_set_log_cb(rd_kafka_conf_t *conf,
                              void (*cb)(const rd_kafka_t *rk, int level, const char *fac, const char *buf));

rd_kafka_t *rd_kafka_new(int type, rd_kafka_conf_t *conf, char *errstr, size_t errstr_size);
rd_kafka_topic_t *rd_kafka_topic_new(rd_kafka_t *rk, const char *topic, rd_kafka_topic_conf_t *conf);
int rd_kafka_produce(rd_kafka_topic_t *rkt, int32_t partition, int msgflags, void *payload, size_t len, const void *key,
                     size_t keylen, void *msg_opaque);
int rd_kafka_poll(rd_kafka_t *rk, int timeout_ms);
int rd_kafka_outq_len(rd_kafka_t *rk);
int rd_kafka_flush(rd_kafka_t *rk, int timeout_ms);
int rd_kafka_fatal_error(rd_kafka_t *rk, char *errstr, size_t errstr_size);

typedef struct rd_kafka_error_s rd_kafka_error_t;
const char *rd_kafka_error_string(const rd_kafka_error_t *error);
int rd_kafka_error_is_fatal(const rd_kafka_error_t *error);
int rd_kafka_error_is_retriable(const rd_kafka_error_t *error);
int rd_kafka_error_txn_requires_abort(const rd_kafka_error_t *error);
void rd_kafka_error_destroy(rd_kafka_error_t *error);

rd_kafka_error_t *rd_kafka_init_transactions(rd_kafka_t *rk, int timeout_ms);
rd_kafka_error_t *rd_kafka_begin_transaction(rd_kafka_t *rk);
rd_kafka_error_t *rd_kafka_commit_transaction(rd_kafka_t *rk, int timeout_ms);
rd_kafka_error_t *rd_kafka_abort_transaction(rd_kafka_t *rk, int timeout_ms);

rd_kafka_queue_t *rd_kafka_queue_new(rd_kafka_t *rk);
int rd_kafka_consume_start_queue(rd_kafka_topic_t *rkt, int32_t partition, int64_t offset, rd_kafka_queue_t *rkqu);
int rd_kafka_consume_callback_queue(rd_kafka_queue_t *rkqu, int timeout_ms,
                                    void (*consume_cb)(rd_kafka_message_t *message, void *opaque), void *opaque);
int rd_kafka_query_watermark_offsets(rd_kafka_t *rk, const char *topic, int32_t partition, int64_t *low, int64_t *high,
                                     int timeout_ms);

#endif
