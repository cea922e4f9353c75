"""Spark partitions, and the batch reader.

A partition is pickled with nothing but names, numbers and addresses. Tasks begin at
different gateways of the configured ones, so that several gateways share the load;
those that only the cluster named come last, because a task may not reach them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from pyspark_penstock.batch_rows import BatchDecoder, TellingReader
from pyspark_penstock.decode import Decoder
from pyspark_penstock.direct.nodes import Leader, leaders, node
from pyspark_penstock.direct.route import SILENCE_S, DirectRoute
from pyspark_penstock.fetch import RangeReader
from pyspark_penstock.gateway import GatewayClient
from pyspark_penstock.memory import giving_back
from pyspark_penstock.options import SourceOptions
from pyspark_penstock.parts import restore
from pyspark_penstock.planning import batch_ranges
from pyspark_penstock.pushdown import Narrowing, narrow
from pyspark_penstock.tiling import OffsetRange


class RangePartition(InputPartition):
    """One range, the gateways to try for it, in order, and who leads it as far as the plan knows."""

    def __init__(self, wanted: OffsetRange, gateways: tuple[str, ...], leader: Leader | None = None) -> None:
        super().__init__(None)
        self.wanted = wanted
        self.gateways = gateways
        self.leader = leader


def range_partitions(client: GatewayClient, ranges: Sequence[OffsetRange]) -> list[InputPartition]:
    configured = client.addresses
    others = client.others()
    known = leaders(client.described, ((item.topic, item.partition) for item in ranges))
    partitions: list[InputPartition] = []
    for index, item in enumerate(ranges):
        turn = index % len(configured)
        gateways = configured[turn:] + configured[:turn] + others
        partitions.append(RangePartition(item, gateways, known.get((item.topic, item.partition))))
    return partitions


def read_partition(partition: RangePartition, options: SourceOptions, schema: Any) -> Iterator[Any]:
    """Arrow batches of one partition. Runs on an executor."""
    wanted = partition.wanted
    if options.batch_rows:
        rows = BatchDecoder(wanted.topic, wanted.partition, schema)
        if "unreadable" not in schema.names:
            return _read_range(wanted, partition.gateways, options, rows, _direct(partition, options))
        return TellingReader(
            wanted,
            rows,
            lambda part, into: _read_range(part, partition.gateways, options, into),
            options.poll_timeout_ms / 1000,
        ).batches()
    return _read_range(
        wanted,
        partition.gateways,
        options,
        Decoder(wanted.topic, wanted.partition, schema, options.chunk_bytes),
        _direct(partition, options),
    )


def _direct(partition: RangePartition, options: SourceOptions) -> DirectRoute | None:
    """The way to the leader itself, if it is to be tried."""
    wanted, must = partition.wanted, options.fetch_mode == "direct"
    if options.fetch_mode == "gateway" or not wanted.topic_id:
        return None
    if partition.leader is not None and not partition.leader.listeners and not must:
        return None

    def described() -> Any:
        client = GatewayClient(partition.gateways, credentials_file=options.credentials_file)
        client.describe([wanted.topic])
        return client.described

    return DirectRoute(
        wanted,
        partition.leader,
        lambda: leaders(described()).get((wanted.topic, wanted.partition)),
        must=must,
        credentials_file=options.credentials_file,
        read_committed=options.read_committed,
        silence_s=min(SILENCE_S, options.poll_timeout_ms / 1000),
        max_bytes=options.chunk_bytes,
        rack=options.rack,
        find_node=lambda node_id: node(described(), node_id),
    )


def _read_range(
    wanted: OffsetRange,
    gateways: tuple[str, ...],
    options: SourceOptions,
    decoder: Decoder,
    direct: DirectRoute | None = None,
) -> Iterator[Any]:
    reader = RangeReader(
        wanted,
        gateways,
        decoder,
        fail_on_data_loss=options.fail_on_data_loss,
        chunk_bytes=options.chunk_bytes,
        poll_timeout_ms=options.poll_timeout_ms,
        credentials_file=options.credentials_file,
        read_committed=options.read_committed,
        direct=direct,
    )
    return giving_back(reader.batches())


def batch_reader(options: SourceOptions, schema: Any) -> PenstockReader:
    """With filters or without: Spark refuses a reader that takes them while its own switch is off."""
    return FilteringReader(options, schema) if options.pushdown else PenstockReader(options, schema)


class PenstockReader(DataSourceReader):
    """A batch read: fixed ranges, planned once."""

    def __init__(self, options: SourceOptions, schema: Any) -> None:
        self._options = options
        self._schema = schema
        self._narrowing: Narrowing | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return restore, ("reader", "PenstockReader", self._options, self._schema)

    def partitions(self) -> Sequence[InputPartition]:
        client = GatewayClient.of(self._options)
        return range_partitions(client, batch_ranges(client, self._options, self._narrowing))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # Nothing to read at all: Spark makes up one partition that is none of ours.
        if not isinstance(partition, RangePartition):
            return iter(())
        return read_partition(partition, self._options, self._schema)


class FilteringReader(PenstockReader):
    """A batch read that is planned for what the query's filters leave. Executors need nothing of it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self._narrowing = narrow(filters)
        return filters  # Spark applies them all to the rows
