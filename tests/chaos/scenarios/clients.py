"""Clients that are slow, and clients that are many, while a leader dies."""

from __future__ import annotations

from chaos.load import Reader, Sender
from chaos.run import TOPIC, Run
from chaos.scenario import scenario
from chaos.scene import ASSIGNMENT

SLOW_POLL_S = 2.0
FLOOD_PER_S = 5_000.0
FLOOD_PROCESSES = (20, 21)
READER_PROCESSES = (30, 31, 32, 33)


@scenario("slow-consumer", "both consumers poll every 2 s only, while a leader is killed")
def slow_consumer(run: Run) -> None:
    victim = run.leader()
    run.reader.pause_s = run.direct_reader.pause_s = SLOW_POLL_S
    run.fault()
    run.cluster.kill(victim)
    run.hold()
    run.heal()
    run.reader.pause_s = run.direct_reader.pause_s = 0
    run.cluster.start(victim)


@scenario("flood", "two producers of 5,000 records/s and four consumers join, then a leader is killed")
def flood(run: Run) -> None:
    victim = run.leader()
    partitions = len(ASSIGNMENT)
    extra = [
        Sender(process, run.cluster.clients(use), TOPIC, partitions, FLOOD_PER_S)
        for process, use in zip(FLOOD_PROCESSES, ("kafka", "direct"), strict=True)
    ]
    readers = [Reader(process, run.cluster.clients(), TOPIC, partitions) for process in READER_PROCESSES]
    clients: list[Sender | Reader] = [*extra, *readers]
    for client in clients:
        client.start()
    run.hold(0.2)
    run.fault()
    run.cluster.kill(victim)
    run.hold(0.8)
    run.heal()
    run.cluster.start(victim)
    for client in clients:
        client.finish()
    for sender in extra:
        run.others.sends.extend(sender.sends)
    for reader in readers:
        run.others.polls.extend(reader.polls)
