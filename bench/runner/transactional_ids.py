"""Many transactional ids by raw requests, of the old protocol: a client library has threads for each of them.

Their first versions, which have no tagged fields: InitProducerId 1, AddPartitionsToTxn 0, Produce 3. Each id goes to
its coordinator, each batch to its leader; whoever is told to come again does.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.wire.groups import transaction_partition

STATE_TOPIC: Final = "__transaction_state"
CONNECTIONS: Final = 8
"""To each node."""
TIMEOUT_S: Final = 120.0
TRANSACTION_TIMEOUT_MS: Final = 600_000
AGAIN: Final = frozenset({3, 5, 6, 14, 15, 16, 51, 89})
PAUSE_S: Final = 0.02


class Refused(Exception):
    """A request was answered with a code that no repetition cures, or nobody answers."""


class Cluster(NamedTuple):
    """Who is where: addresses by node, leaders by partition of the state topic and of the topic that is written to."""

    addresses: Mapping[int, str]
    coordinators: Mapping[int, int]
    topic: str = ""
    leaders: Mapping[int, int] = {}

    def coordinator(self, transactional_id: str) -> int:
        return self.coordinators[transaction_partition(transactional_id, len(self.coordinators))]


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def _frame(api_key: int, version: int, body: bytes) -> bytes:
    head = struct.pack(">hhi", api_key, version, 1) + _text("bench")
    return struct.pack(">i", len(head) + len(body)) + head + body


def init_producer(transactional_id: str) -> bytes:
    """InitProducerId 1."""
    return _frame(22, 1, _text(transactional_id) + struct.pack(">i", TRANSACTION_TIMEOUT_MS))


def inited(answer: bytes) -> tuple[int, int, int]:
    """Of its answer: (code, producer id, epoch)."""
    _, code, producer_id, epoch = struct.unpack_from(">ihqh", answer)
    return code, producer_id, epoch


def add_partition(transactional_id: str, producer_id: int, epoch: int, topic: str, partition: int) -> bytes:
    """AddPartitionsToTxn 0."""
    head = _text(transactional_id) + struct.pack(">qh", producer_id, epoch)
    return _frame(24, 0, head + struct.pack(">i", 1) + _text(topic) + struct.pack(">ii", 1, partition))


def added(answer: bytes) -> int:
    """The code of its answer."""
    at = 4 + 4
    (length,) = struct.unpack_from(">h", answer, at)
    code: int = struct.unpack_from(">ih", answer, at + 2 + length + 4)[1]
    return code


def produce(transactional_id: str, producer_id: int, epoch: int, topic: str, partition: int) -> bytes:
    """Produce 3 of one record, acks=all."""
    batch = build_batch(
        [NewRecord(None, b"x" * 100, time.time_ns() // 1_000_000)],
        producer_id=producer_id, producer_epoch=epoch, base_sequence=0, transactional=True,
    )  # fmt: skip
    head = _text(transactional_id) + struct.pack(">hi", -1, 30_000)
    return _frame(
        0,
        3,
        head + struct.pack(">i", 1) + _text(topic) + struct.pack(">iii", 1, partition, len(batch)) + batch,
    )


def produced(answer: bytes) -> int:
    """The code of its answer."""
    (length,) = struct.unpack_from(">h", answer, 4)
    code: int = struct.unpack_from(">ih", answer, 4 + 2 + length + 4)[1]
    return code


class _Wires:
    """A few connections to each node; a request has one for itself until it is answered."""

    def __init__(self) -> None:
        self._free: dict[int, asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]]] = {}
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self, addresses: Mapping[int, str]) -> None:
        for node, address in addresses.items():
            host, _, port = address.rpartition(":")
            self._free[node] = asyncio.Queue()
            for _ in range(CONNECTIONS):
                reader, writer = await asyncio.open_connection(host, int(port))
                self._writers.append(writer)
                self._free[node].put_nowait((reader, writer))

    def close(self) -> None:
        for writer in self._writers:
            writer.close()

    async def ask(self, node: int, frame: bytes, code_of: Callable[[bytes], int]) -> bytes:
        """The answer without its correlation id. Raises Refused."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            reader, writer = await self._free[node].get()
            try:
                writer.write(frame)
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                answer = (await reader.readexactly(size))[4:]
            except (OSError, EOFError) as error:
                raise Refused(f"node {node}: {error}") from None
            finally:
                self._free[node].put_nowait((reader, writer))
            code = code_of(answer)
            if not code:
                return answer
            if code not in AGAIN or time.monotonic() > deadline:
                raise Refused(f"node {node} answered with code {code}")
            await asyncio.sleep(PAUSE_S)


async def make(cluster: Cluster, ids: Sequence[str], *, opened: bool = False) -> None:
    """Each gets a producer id; `opened`: and a transaction that stays open, of one record. Raises Refused."""
    wires = _Wires()
    try:
        await wires.open(cluster.addresses)
        left = iter(enumerate(ids))

        async def work() -> None:
            for number, name in left:
                node = cluster.coordinator(name)
                answer = await wires.ask(node, init_producer(name), lambda found: inited(found)[0])
                if opened:
                    await _begin(wires, cluster, name, number % len(cluster.leaders), inited(answer)[1:])

        workers = [work() for _ in range(CONNECTIONS * len(cluster.addresses))]
        await asyncio.gather(*workers)
    except OSError as error:
        raise Refused(str(error)) from None
    finally:
        wires.close()


async def _begin(
    wires: _Wires, cluster: Cluster, name: str, partition: int, producer: tuple[int, int]
) -> None:
    await wires.ask(
        cluster.coordinator(name), add_partition(name, *producer, cluster.topic, partition), added
    )
    await wires.ask(cluster.leaders[partition], produce(name, *producer, cluster.topic, partition), produced)
