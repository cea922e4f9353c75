"""The log checker for transactions: was each whole or not there, and did nobody see one before its end?

Rules: two views of one history are held against the promises of every log (`checker.check`). *The log*: each send as
it was delivered, against all that stands there, aborted records too. *What is committed*: each send as its transaction
ended, against what readers of committed records were given; so a record of an aborted transaction is one whose send
failed, and reading it is G1a. Then the transactions themselves:

* one of which something was read and something not is torn (the last readers read to the end, after all was decided);
* one that was given its own write has read it precommitted;
* readers are given a record only once its transaction is committed, so no two can have read each other's writes: a
  circle of write-read edges is G1c. Transactions that were aborted are no part of it;
* records of two transactions may stand in any order in each partition (G0): that is so in Kafka too, and only counted.

Theory: circles are found as strongly connected components (Tarjan 1972), without recursion.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping

from chaos.checker import OFFSET_BITS, Anomaly, Verdict, check
from chaos.history import NO_OFFSET, History, Polls, Sends, Status, Transaction, TransactionalHistory

Edges = Mapping[int, set[int]]


def check_transactions(history: TransactionalHistory) -> Verdict:
    """All anomalies of a history with transactions; `acked` of the verdict counts records that are committed."""
    verdict = check(_committed(history))
    if len(history.raw):
        for anomaly, found in check(_log(history)).found.items():
            # What is wrong in the log is mostly seen by readers of committed records too.
            if found.count > verdict.count(anomaly):
                verdict.found[anomaly] = found
    polled = set(history.polls.value)
    for number, one in enumerate(history.transactions):
        _check_one(_name(number, one), one, history.sends, polled, verdict)
    _check_cycles(history, verdict)
    return verdict


def _committed(history: TransactionalHistory) -> History:
    """Sends end as their transactions did."""
    sends = _copy(history.sends)
    for one in history.transactions:
        for row in one.rows:
            sends.status[row] = one.outcome
            if one.outcome != Status.OK:
                sends.offset[row] = NO_OFFSET
    return History(sends, history.polls)


def _log(history: TransactionalHistory) -> History:
    """Sends end as they were delivered. What committed readers were given is evidence of what stands where, but they
    pass over records: of no two of their rows is an order asked."""
    polls = Polls()
    polls.extend(history.raw)
    polls.extend(history.polls)
    first = len(history.raw)
    polls.position[first:] = array("q", range(1, len(history.polls) + 1))
    return History(history.sends, polls)


def _check_one(name: str, one: Transaction, sends: Sends, polled: set[int], verdict: Verdict) -> None:
    values = [sends.value[row] for row in one.rows]
    missing = [value for value in values if value not in polled]
    if one.outcome != Status.FAIL and 0 < len(missing) < len(values):
        verdict.add(
            Anomaly.TORN,
            f"{name}: {len(values) - len(missing)} of {len(values)} records were read, {missing[0]} by nobody",
        )
    own = set(values).intersection(one.reads)
    if own:
        verdict.add(Anomaly.PRECOMMITTED_READ, f"{name} was given {min(own)}, which it wrote itself")


def _check_cycles(history: TransactionalHistory, verdict: Verdict) -> None:
    transactions, sends = history.transactions, history.sends
    alive = [number for number, one in enumerate(transactions) if one.outcome != Status.FAIL]
    writer = {sends.value[row]: number for number in alive for row in transactions[number].rows}
    reads: dict[int, set[int]] = {number: set() for number in alive}
    for number in alive:
        for value in transactions[number].reads:
            wrote = writer.get(value, number)
            if wrote != number:
                reads[wrote].add(number)
    for circle in circles(reads):
        names = ", ".join(_name(number, transactions[number]) for number in circle[:4])
        verdict.add(Anomaly.CIRCULAR_READS, f"{len(circle)} have read one another's writes: {names}")
    for circle in circles(_in_log_order(history.polls, writer)):
        names = ", ".join(_name(number, transactions[number]) for number in circle[:4])
        verdict.add(Anomaly.WRITE_CYCLE, f"{len(circle)} stand in several orders: {names}")


def _in_log_order(polls: Polls, writer: Mapping[int, int]) -> Edges:
    """From each transaction to the one that follows it somewhere."""
    places = {
        partition << OFFSET_BITS | offset: value
        for partition, offset, value in zip(polls.partition, polls.offset, polls.value, strict=True)
        if value in writer
    }
    edges: dict[int, set[int]] = {number: set() for number in writer.values()}
    before: tuple[int, int] | None = None
    for place in sorted(places):
        here = place >> OFFSET_BITS, writer[places[place]]
        if before is not None and before[0] == here[0] and before[1] != here[1]:
            edges[before[1]].add(here[1])
        before = here
    return edges


def circles(edges: Edges) -> list[list[int]]:
    """Strongly connected components of more than one. Every node is a key."""
    found: list[list[int]] = []
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for root in edges:
        if root in index:
            continue
        work = [(root, iter(edges[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, rest = work[-1]
            following = next(rest, None)
            if following is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = _popped(stack, on_stack, node)
                    if len(component) > 1:
                        found.append(component)
            elif following not in index:
                index[following] = low[following] = len(index)
                stack.append(following)
                on_stack.add(following)
                work.append((following, iter(edges[following])))
            elif following in on_stack:
                low[node] = min(low[node], index[following])
    return found


def _popped(stack: list[int], on_stack: set[int], last: int) -> list[int]:
    """Everything down to `last`, oldest first."""
    component: list[int] = []
    while not component or component[-1] != last:
        component.append(stack.pop())
        on_stack.discard(component[-1])
    component.reverse()
    return component


def _copy(sends: Sends) -> Sends:
    copied = Sends()
    copied.extend(sends)
    return copied


def _name(number: int, one: Transaction) -> str:
    return f"transaction {number} of process {one.process} ({one.outcome.name})"
