"""A load of both generations of clients, which a cluster may be changed under: nothing lost, doubled, torn or fatal.

Generations: librdkafka adds partitions to its transactions by itself; Kafka's Java client 4.x leaves that to the
leaders where the cluster has transaction.version 2. Of each there is

* a plain idempotent producer, both to one topic, which a reader of committed records follows;
* transactional producers, by gateways and directly, that commit and abort (`chaos.transactional_part`, whose checker
  judges them);
* a loop of consume, transform and produce, with its offsets in the transaction, from the topic of the plain producers
  to one of its own. Each fourth batch is aborted on purpose.

Rules: what the plain producers wrote is judged by the log checker, and none of their sends may fail. The output of a
loop is its input, record by record in each partition: so what was done twice, not at all, or in an aborted transaction
is seen. Nobody is restarted; an error that a client calls fatal fails the run. Aborts that a client asks for are
allowed, and counted. Which protocol the Java producers speak is seen by their epochs (KIP-890 part 2): each end of a
transaction raises them where leaders add partitions, and none where they do it themselves.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

from confluent_kafka import Consumer, Producer, TopicPartition

from chaos.checker import check
from chaos.history import NO_OFFSET, History, Sends, Status
from chaos.load import MESSAGE_TIMEOUT_S, VALUES_PER_PROCESS, Reader, Sender, value_of
from chaos.transactional_load import TRANSACTION_TIMEOUT_MS, TransactionalClient, noted_by_java
from chaos.transactional_part import TOPIC as TRANSACTIONS
from chaos.transactional_part import TransactionalPart
from penstock.cli import transaction_wire as tw
from support.java import encode, shared_driver
from support.kafka import client_config, create_topic
from support.transactional_writers import CALL_S
from support.transactions import ERRORS, Verdict, again, committed, is_decided, read_to_end, verdict
from support.waiting import wait_for

PLAIN = "plain"
PARTITIONS = 6
RATE_PER_S = 30.0
"""Of each plain producer."""
PAUSE_S = 0.2
"""Between two transactions of a producer: two cores have to do all else too."""
BATCH = 200
"""Records of a loop's transaction at most: more than come in while one goes on."""
ABORT_EVERY = 4
MORE = 20
"""Records that each has to get done after each change."""
PATIENCE_S = 240.0
LIBRDKAFKA, JAVA = "confluent-kafka", "java"
BY_GATEWAYS = ((LIBRDKAFKA, "kafka"), (JAVA, "kafka"))
BOTH_WAYS = (*BY_GATEWAYS, (LIBRDKAFKA, "direct"), (JAVA, "direct"))
FIRST_SENDER, FIRST_READER, LAST_READER = 1, 10, 20


class Doors:
    """Where clients of a cluster come in."""

    def __init__(self, bootstrap: str, direct_bootstrap: str) -> None:
        self._doors = {"kafka": bootstrap, "direct": direct_bootstrap}

    def bootstrap(self, use: str = "kafka") -> str:
        return self._doors[use]

    def clients(self, use: str = "kafka") -> dict[str, str]:
        return {"bootstrap.servers": self._doors[use]}


class JavaSender:
    """As `chaos.load.Sender`, by Kafka's Java client."""

    def __init__(self, process: int, bootstrap: str, topic: str, partitions: int, rate_per_s: float) -> None:
        self.process = process
        self.sends = Sends()
        self.errors: list[str] = []
        self.acked_s: list[float] = []
        self._place = topic, partitions, rate_per_s
        self._driver = shared_driver()
        config = {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": "true",
            "linger.ms": "2",
            "delivery.timeout.ms": str(int(MESSAGE_TIMEOUT_S * 1000)),
            "max.block.ms": str(int(MESSAGE_TIMEOUT_S * 1000)),
        }
        self._handle = self._driver.call("producer.open", config=config)
        self._sent: list[Future[Any]] = []
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sender-{process}", daemon=True)

    @property
    def acked_count(self) -> int:
        return len(self.acked_s)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def finish(self) -> None:
        """Send no more and wait for all answers."""
        self.stop()
        self._thread.join()
        if self._failure is not None:
            raise AssertionError(f"producer {self.process}: {self._failure!r}")
        for sent in self._sent:
            sent.exception(MESSAGE_TIMEOUT_S)
        self._driver.call("producer.close", handle=self._handle)

    def longest_gap_s(self) -> float:
        """Between two acks."""
        return max((later - sooner for sooner, later in pairwise(self.acked_s)), default=0.0)

    def _run(self) -> None:
        topic, partitions, rate_per_s = self._place
        begun_s = time.monotonic()
        try:
            while not self._stop.wait(1 / rate_per_s):
                while len(self.sends) < int((time.monotonic() - begun_s) * rate_per_s):
                    self._send(topic, len(self.sends), partitions)
        except BaseException as error:
            self._failure = error

    def _send(self, topic: str, number: int, partitions: int) -> None:
        value, partition = self.process * VALUES_PER_PROCESS + number, number % partitions
        row = self.sends.invoke(self.process, number, partition, value)
        rows = [{"partition": partition, "value": encode(value_of(value))}]
        sent = self._driver.start("producer.send", handle=self._handle, topic=topic, records=rows)
        self._sent.append(sent)
        sent.add_done_callback(partial(noted_by_java, partial(self._delivered, row)))
        sent.add_done_callback(self._failed)

    def _delivered(self, row: int, status: Status, offset: int = NO_OFFSET) -> None:
        self.sends.complete(row, status, offset)
        if status is Status.OK:
            self.acked_s.append(time.monotonic())

    def _failed(self, sent: Future[Any]) -> None:
        if (failure := sent.exception()) is not None:
            self.errors.append(repr(failure))
        elif "error" in sent.result()[0]:
            self.errors.append(str(sent.result()[0]["error"]))


class Loop(Protocol):
    """Consume, transform, produce from `PLAIN` to `target`."""

    name: str
    target: str
    fatal: list[str]
    aborts: list[str]
    """Why the application was made to abort."""

    def start(self) -> None: ...
    def done(self) -> int:
        """Records whose copies are committed."""
        ...

    def until(self, rows: int) -> None:
        """End once so many are done."""
        ...

    def join(self) -> None:
        """Wait until it has ended."""
        ...


class LibrdkafkaLoop:
    """confluent-kafka."""

    def __init__(self, bootstrap: str) -> None:
        self.name, self.target = "loop-librdkafka", "copied-by-librdkafka"
        self.fatal: list[str] = []
        self.aborts: list[str] = []
        self._bootstrap = bootstrap
        self._done = 0
        self._until = sys.maxsize
        self._thread = threading.Thread(target=self._guarded, name=self.name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def done(self) -> int:
        return self._done

    def until(self, rows: int) -> None:
        self._until = rows

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"{self.name}: {self._done} of {self._until}, {self.aborts[-3:]}"

    def _guarded(self) -> None:
        try:
            self._run()
        except Exception as error:
            self.fatal.append(f"{self.name}: {error!r}")

    def _run(self) -> None:
        settings = {
            "group.id": self.name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
        consumer = Consumer(client_config(self._bootstrap, **settings))
        try:
            consumer.subscribe([PLAIN])
            more = {"transactional.id": self.name, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS}
            producer = Producer(client_config(self._bootstrap, **more))
            again(lambda: producer.init_transactions(CALL_S))
            batches = 0
            while self._done < self._until:
                # By offset: a group that forms anew within the call may bring some of them a second time.
                messages = [m for m in consumer.consume(BATCH, timeout=0.5) if m.error() is None]
                found = {(m.partition(), m.offset()): m for m in messages}
                if found:
                    batches += 1
                    self._copy(consumer, producer, found, batches % ABORT_EVERY == 0)
        finally:
            consumer.close()

    def _copy(self, consumer: Consumer, producer: Producer, found: dict[Any, Any], aborts: bool) -> None:
        producer.begin_transaction()
        try:
            for (partition, _), message in sorted(found.items()):
                producer.produce(self.target, b"<%s>" % message.value(), partition=partition)
            ends = {partition: offset + 1 for partition, offset in sorted(found)}
            places = [TopicPartition(PLAIN, partition, offset) for partition, offset in ends.items()]
            group = consumer.consumer_group_metadata()
            again(lambda: producer.send_offsets_to_transaction(places, group, CALL_S))
            if not aborts:
                again(lambda: producer.commit_transaction(CALL_S))
                self._done += len(found)
                return
        except ERRORS as error:
            if verdict(error) is not Verdict.ABORT:
                raise
            self.aborts.append(f"{self.name}: {error!r}")
        again(lambda: producer.abort_transaction(CALL_S))
        mine = consumer.assignment()
        for place in committed(consumer, mine) if mine else []:
            consumer.seek(TopicPartition(place.topic, place.partition, max(place.offset, 0)))


class JavaLoop:
    """Kafka's Java client, in the JVM by itself."""

    _numbers = itertools.count(1)

    def __init__(self, bootstrap: str) -> None:
        # The JVM is that of all tests, and remembers by its name what a loop has done.
        self.name, self.target = f"loop-java-{next(self._numbers)}", "copied-by-java"
        self.fatal: list[str] = []
        self.aborts: list[str] = []
        self._bootstrap = bootstrap
        self._driver = shared_driver()
        self._copied: Future[Any] = Future()

    def start(self) -> None:
        self._copied = self._driver.start(
            "transactions.copy",
            bootstrap=self._bootstrap,
            name=self.name,
            source=PLAIN,
            target=self.target,
            protocol="consumer",
            batch=BATCH,
            timeout_ms=TRANSACTION_TIMEOUT_MS,
            abort_every=ABORT_EVERY,
        )
        self._copied.add_done_callback(self._ended)

    def _ended(self, copied: Future[Any]) -> None:
        if (failure := copied.exception()) is not None:
            self.fatal.append(f"{self.name}: {failure!r}")
        else:
            self.aborts += copied.result()

    def done(self) -> int:
        return int(self._driver.call("transactions.done", name=self.name))

    def until(self, rows: int) -> None:
        self._driver.call("transactions.until", name=self.name, rows=rows)

    def join(self) -> None:
        self._copied.exception(PATIENCE_S)


class BothGenerations:
    """See the module's text."""

    def __init__(
        self, bootstrap: str, direct_bootstrap: str, clients: Sequence[tuple[str, str]] = BOTH_WAYS
    ) -> None:
        """`clients`: the transactional producers, by library and way in."""
        self._bootstrap, self._clients = bootstrap, clients
        shared_driver().call("ping", wait_s=PATIENCE_S)  # a JVM takes its time on a busy machine
        self._doors = Doors(bootstrap, direct_bootstrap)
        create_topic(bootstrap, PLAIN, PARTITIONS)
        self._senders: tuple[Sender, JavaSender] = (
            Sender(FIRST_SENDER, self._doors.clients(), PLAIN, PARTITIONS, RATE_PER_S),
            JavaSender(FIRST_SENDER + 1, bootstrap, PLAIN, PARTITIONS, RATE_PER_S),
        )
        self._reader = self._reader_of_committed(FIRST_READER)
        self._loops: tuple[Loop, ...] = ()
        self._transactions: TransactionalPart | None = None

    @contextmanager
    def at_work(self) -> Iterator[BothGenerations]:
        """Plain producers until left; transactions from `begin_transactions` on. What they did is judged at the end."""
        for plain in (*self._senders, self._reader):
            plain.start()
        try:
            self.go_on()
            yield self
            self.go_on()
            self._finish()
        except BaseException:
            self._let_go()
            raise
        finally:
            self._tell()
        self._judge()

    def begin_transactions(self) -> None:
        """Nobody who is at work is restarted for it."""
        self._loops = LibrdkafkaLoop(self._bootstrap), JavaLoop(self._bootstrap)
        for topic in (TRANSACTIONS, *(loop.target for loop in self._loops)):
            create_topic(self._bootstrap, topic, PARTITIONS)
        self._transactions = TransactionalPart(self._doors, PARTITIONS, self._clients, PAUSE_S)
        for part in (self._transactions, *self._loops):
            part.start()
        self.go_on()

    def go_on(self) -> None:
        """Everybody does more, from now on, and nobody has heard anything fatal."""
        counts: dict[str, Callable[[], int]] = {
            f"producer {one.process} gets acks": partial(_acks, one) for one in self._senders
        }
        counts |= {f"{loop.name} commits": loop.done for loop in self._loops}
        counts["the reader reads on"] = partial(len, self._reader.polls)
        wanted = {what: count() + MORE for what, count in counts.items()}
        begun_s = time.monotonic()
        for what, count in counts.items():
            wait_for(partial(self._is_there, count, wanted[what]), what, PATIENCE_S)
        if self._transactions is not None:
            self._transactions.wait_until_served(begun_s, "after what was just done")
        assert not self._fatal()

    def _is_there(self, count: Callable[[], int], wanted: int) -> bool:
        assert not self._fatal()
        return count() >= wanted

    def wait_for_protocol(self, *, is_new: bool) -> None:
        """Until each Java producer speaks that one of transactions."""
        names = [one.name for one in self._parts() if one.by == JAVA]
        wait_for(
            lambda: self._epochs_rise(names) == {is_new},
            f"{names} speak the {'new' if is_new else 'old'} protocol",
            PATIENCE_S,
        )

    # --- inside ------------------------------------------------------------------

    def _parts(self) -> list[TransactionalClient]:
        return self._transactions.clients if self._transactions is not None else []

    def _epochs_rise(self, names: list[str]) -> set[bool]:
        """Whether they do while each producer commits."""
        before = self._epochs(names)
        self.go_on()
        after = self._epochs(names)
        return {before[name] != after[name] for name in names}

    def _epochs(self, names: list[str]) -> dict[str, tuple[int, int]]:
        """Producer id and epoch of each, which go on with another id where there is no higher epoch."""

        def asked() -> dict[str, tuple[int, int]] | None:
            found = tw.describe_transactions(tw.read_cluster(self._bootstrap), names)
            known = {name: one for name, one in found.items() if not isinstance(one, int)}
            if len(known) < len(names):
                return None
            return {name: (one.producer_id, one.producer_epoch) for name, one in known.items()}

        found = wait_for(asked, f"coordinators tell of {names}")
        assert found is not None
        return found

    def _reader_of_committed(self, process: int, **more: str) -> Reader:
        settings = {**self._doors.clients(), "isolation.level": "read_committed", **more}
        return Reader(process, settings, PLAIN, PARTITIONS)

    def _fatal(self) -> list[str]:
        """What no client may be told: sends of plain producers that failed are among it."""
        heard = [f"producer {one.process}: {error}" for one in self._senders for error in one.errors]
        heard += [error for loop in self._loops for error in loop.fatal]
        return heard + (self._transactions.fatal() if self._transactions is not None else [])

    def _aborts(self) -> list[str]:
        """Why applications were made to abort."""
        aborts = [part.aborts for part in self._parts()] + [loop.aborts for loop in self._loops]
        return [why for each in aborts for why in each]

    def _finish(self) -> None:
        """Everybody ends with what it has begun, and loops with all that there is."""
        for sender in self._senders:
            sender.finish()
        self._input = read_to_end(self._bootstrap, PLAIN, "read_committed")
        for loop in self._loops:
            loop.until(sum(map(len, self._input.values())))
        for loop in self._loops:
            loop.join()
        if self._transactions is not None:
            self._transactions.finish()
        self._reader.finish()

    def _let_go(self) -> None:
        """After a failure: end, however far it is."""
        for plain in (*self._senders, self._reader):
            plain.stop()
        for part in self._parts():
            part.stop()
        for loop in self._loops:
            loop.until(0)

    def _judge(self) -> None:
        assert not self._fatal()
        history = History()
        for sender in self._senders:
            history.sends.extend(sender.sends)
        last = self._reader_of_committed(LAST_READER, **{"enable.partition.eof": "true"})
        last.read_until_told()
        for reader in (self._reader, last):
            history.polls.extend(reader.polls)
        plain = check(history)
        assert not plain.forbidden, plain.lines()
        assert plain.acked == plain.sent == sum(map(len, self._input.values()))
        if self._transactions is None:
            return
        self._transactions.read_back()
        print(self._transactions.figures())
        found = self._transactions.judge(())
        assert not found.forbidden, found.lines()
        for loop in self._loops:
            check_copies(self._bootstrap, loop, self._input)

    def _tell(self) -> None:
        acked = {sender.process: sender.acked_count for sender in self._senders}
        gaps = {sender.process: round(sender.longest_gap_s(), 2) for sender in self._senders}
        copied = {loop.name: loop.done() for loop in self._loops}
        print(f"plain: acked {acked}, longest gap in s {gaps}; copied {copied}")
        aborts = Counter(self._aborts())
        print(f"{aborts.total()} aborts asked for by clients", *aborts.most_common(8), sep="\n  ")
        print(f"fatal: {self._fatal()}")


def _acks(sender: Sender | JavaSender) -> int:
    return sender.acked_count


def check_copies(bootstrap: str, loop: Loop, source: dict[int, list[str]]) -> None:
    """Each record of the source has one copy, and nothing else is there, in the same order."""
    wait_for(partial(is_decided, bootstrap, loop.target, PARTITIONS), f"all of {loop.target} is decided")
    wrong = wrong_copies(source, read_to_end(bootstrap, loop.target, "read_committed"))
    assert not wrong, (loop.target, wrong)


def wrong_copies(source: dict[int, list[str]], found: dict[int, list[str]]) -> list[str]:
    """In words, by partition."""
    wrong = []
    for partition, values in source.items():
        wanted, there = [f"<{value}>" for value in values], found[partition]
        if there == wanted:
            continue
        times = Counter(there)
        lost = [value for value in wanted if not times[value]]
        doubled = [value for value, count in times.items() if count > 1]
        strange = sorted(times.keys() - set(wanted))
        what = {"lost": lost, "doubled": doubled, "strange": strange}
        told = [f"{len(values)} {name}, {values[:3]}" for name, values in what.items() if values]
        wrong.append(f"partition {partition}: {'; '.join(told) or 'in another order'}")
    return wrong
