"""Settings of Kafka's Java clients, as Spark's connector takes them with `kafka.` before their names.

Source: ConsumerConfig, AdminClientConfig and ProducerConfig of Apache Kafka 4.3.1, and auto.include.jmx.reporter, which
4.0 took away.
"""

from __future__ import annotations

_NAMES = """
    acks allow.auto.create.topics auto.commit.interval.ms auto.include.jmx.reporter batch.size
    bootstrap.controllers buffer.memory check.crcs client.dns.lookup client.id client.rack
    compression.gzip.level compression.lz4.level compression.type compression.zstd.level config.providers
    connections.max.idle.ms default.api.timeout.ms delivery.timeout.ms enable.idempotence enable.metrics.push
    exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.instance.id group.protocol
    group.remote.assignor heartbeat.interval.ms internal.throw.on.fetch.stable.offset.unsupported linger.ms
    max.block.ms max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms
    max.poll.records max.request.size metadata.max.age.ms metadata.max.idle.ms
    metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters metrics.num.samples
    metrics.recording.level metrics.sample.window.ms partition.assignment.strategy
    partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.class
    partitioner.ignore.keys receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms
    request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms security.providers send.buffer.bytes
    session.timeout.ms share.acknowledgement.mode share.acquire.mode socket.connection.setup.timeout.max.ms
    socket.connection.setup.timeout.ms transaction.timeout.ms transaction.two.phase.commit.enable
    transactional.id
"""

MEANINGLESS = frozenset(_NAMES.split())
"""They tune what this source does not have: taken, and told once, so that a job can move over as it is."""

SIGN_IN = ("sasl.", "ssl.")
"""How names begin that say who somebody is. Many hold secrets, so credentialsFile has them."""

PLAIN_SIGN_IN = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "ssl.truststore.location",
        "ssl.truststore.type",
        "ssl.keystore.location",
        "ssl.keystore.type",
    }
)
"""Those of them that hold none: beside credentialsFile they are taken, and must say what it says."""
