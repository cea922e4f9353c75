"""What differs from seed to seed beside the faults: sizes, times, the workload."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from simulation.network import NetworkProfile

RUN_US = 60_000_000
"""Faults and load go on for this long; then everything heals."""

HEAL_US = 45_000_000
"""Within this time after healing everything must be well again."""

OFFSETS_PARTITIONS = 2
"""Of `__consumer_offsets`, in seeds that have groups."""
TRANSACTIONS_PARTITIONS = 2
"""Of `__transaction_state`, in seeds that have transactions."""

FOCI: dict[str, tuple[str, ...]] = {
    "quorum": ("controllers apart", "controllers apart", "active controller stopped", "controller killed"),
    "power": ("power cut after a commit", "all disks slow", "node power cut"),
    "network": ("host cut off, one way", "two hosts apart", "network in two halves"),
    "disks": ("crash at a disk operation", "disk hung", "disk full"),
}
"""Half of the seeds have one: such faults come as often as all others together."""


@dataclass(slots=True)
class TransactionSettings:
    """What a planted bug leaves no choice in of transactions; None: as the seed draws it."""

    ids: int | None = None
    partitions: int | None = None
    """Of each topic."""
    protocol: int | None = None
    """1: librdkafka's, 2: that of KIP-890."""
    is_direct: bool | None = None
    """All go to the nodes themselves, or all by gateways."""
    passing: bool | None = None
    """A topic is deleted and made again."""
    timeout_ms: int | None = None
    pause_us: int | None = None
    """Between two transactions, on average."""
    linger_chance: float | None = None
    act_us: int | None = None
    """Between two things that befall producers, on average."""
    stop_share: float = 0.15
    """Of these: a process is stopped (SIGSTOP)."""
    stop_kinds: str = "gn"
    """Which ones: gateways, nodes."""
    stop_s: tuple[float, float] = (2.0, 7.0)
    """For how long, at least and at most."""
    delivery_timeout_us: int = 4_000_000
    """Kafka's delivery.timeout.ms: a batch is given up then, and with it its transaction. Shorter than most faults, so
    that requests arrive which nobody waits for any more."""
    late: tuple[float, int] = (0.0, 0)
    """A part of what clients send takes longer on its way, at most so many microseconds."""
    commit_share: float = 0.75
    """Of transactions: their program wants to commit."""
    given_up: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Requests by name, of which a part is given up after at most so many microseconds."""


@dataclass(slots=True)
class Settings:
    """Drawn from the seed."""

    controllers: int
    nodes: int
    gateways: int
    partitions: int
    silence_s: float
    silence_spread: float
    """Controllers stand after `silence_s` to that many times it: when it is small, several at once."""
    append_period_s: float
    rest_s: float
    tick_s: float
    session_timeout_ms: int
    heartbeat_ms: int
    rebalance_ms: int
    snapshot_every: int
    lag_max_ms: int
    checkpoint_ms: int
    flush_interval_ms: int
    retention_check_ms: int
    group_flush: bool
    is_raft_tcp: bool
    segment_bytes: int
    index_interval_bytes: int
    producers: int
    produce_interval_us: int
    fault_interval_us: int
    network: NetworkProfile
    favoured: tuple[str, ...] = ()
    """Faults that come far more often than by their weight."""
    hop_probability: float = 0.0
    """How often a producer loses its connection before it sends, and comes back by any gateway: by one that
    is behind the last one, too."""
    direct_probability: float = 0.3
    """How often a producer goes to the leaders themselves."""
    fallback_silences: float = 1.2
    """How long a leader of the quorum that hears no majority goes on, in times of `silence_s`."""
    commit_timeout_ms: int = 10_000
    """How long a controller waits for the commit of its command before it gives up on it."""
    log_rot: bool = False
    """A storage node's disk forgets a bit for sure."""
    log_life: tuple[str, ...] = ()
    """Of `log_life`: what is in this run for sure. Most runs have none of it, some draw it."""
    with_groups: bool = False
    """Consumer groups for sure; else a part of the seeds has them, see `groups`."""
    with_transactions: bool = False
    """Transactions for sure; else a part of the seeds has them, see `transactions`."""
    transactions: TransactionSettings = field(default_factory=TransactionSettings)
    with_rights: bool = False
    """Users and rights for sure; else a part of the seeds has them, see `rights`."""
    with_operations: bool = False
    """An operator for sure; else a part of the seeds has one, see `operations`."""
    operations: tuple[str, ...] = ()
    """Of `operations.FEATURES`: what its cluster has for sure."""
    near_bytes: int = 256 * 1024
    """A replica with more than twice that to fetch goes to the catch-up lane, where there is a rate."""
    throttled_message_bytes: int = 16 * 1024
    """No message of a throttled stream is made smaller."""
    static_members: bool = False
    """All members of groups are static (KIP-345)."""
    pieces: bool = False
    """Batches go in pieces for sure; else in half of the seeds, see `World`."""
    command_bursts: bool = False
    """Many commands for the controllers, a few at a time."""

    def focus(self, name: str) -> None:
        """Have faults of one kind, of `FOCI`."""
        self.favoured = FOCI[name]
        self.command_bursts = name == "quorum"

    @classmethod
    def draw(cls, rng: random.Random) -> Settings:
        """Settings of one seed."""
        silence_s = rng.choice((0.5, 1.0))
        is_raft_tcp = rng.random() < 0.4
        session_timeout_ms = rng.choice((1_000, 2_000))
        settings = cls(
            controllers=5 if rng.random() < 0.1 else 3,
            nodes=4 if rng.random() < 0.15 else 3,
            gateways=2 if rng.random() < 0.2 else 1,
            partitions=rng.choice((1, 2, 3)),
            silence_s=silence_s,
            silence_spread=rng.choice((1.1, 1.6, 1.6)),
            append_period_s=rng.choice((0.1, 0.15)) if silence_s < 1 else rng.choice((0.2, 0.3)),
            rest_s=0.2,
            tick_s=0.08,
            session_timeout_ms=session_timeout_ms,
            heartbeat_ms=session_timeout_ms * 4 // 10,
            rebalance_ms=rng.choice((0, 2_000, 5_000)),
            snapshot_every=rng.choice((8, 20, 60, 10_000)),
            lag_max_ms=rng.choice((500, 1_500, 4_000)),
            checkpoint_ms=rng.choice((1_000, 3_000, 5_000)),
            flush_interval_ms=rng.choice((2_000, 20_000)),
            retention_check_ms=5_000,
            group_flush=rng.random() < 0.5,
            is_raft_tcp=is_raft_tcp,
            segment_bytes=rng.choice((1024, 4096, 1 << 20)),
            index_interval_bytes=rng.choice((128, 512, 4096)),
            producers=rng.choice((1, 2, 3)),
            produce_interval_us=rng.choice((300_000, 500_000, 800_000)),
            fault_interval_us=rng.choice((600_000, 1_300_000, 2_600_000)),
            network=NetworkProfile(
                # Frames without an order and long on their way have PySyncObj repeat itself without end.
                delay_us_max=rng.choice((1_000, 5_000, 20_000, 50_000 if is_raft_tcp else 10_000)),
                slow_probability=rng.choice((0.0, 0.01, 0.05)),
                loss_probability=rng.choice((0.0, 0.005, 0.03)),
                duplicate_probability=rng.choice((0.0, 0.01, 0.05, 0.2)),
                duplicate_us_max=rng.choice((20_000, 1_500_000)),
                reorder_probability=rng.choice((0.0, 0.01, 0.05, 0.1)),
                late_us_max=rng.choice((100_000, 1_500_000, 6_000_000)),
            ),
        )
        if settings.gateways > 1:
            settings.hop_probability = 0.1
        if rng.random() < 0.5:
            settings.focus(rng.choice(tuple(FOCI)))
        return settings
