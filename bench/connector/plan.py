"""Which rounds are left to do, and which records that takes. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from bench.connector.documents import CONNECTOR, Document
from bench.connector.goals import KIB, MICRO_BATCH
from bench.connector.jobs import TASKS, Task

MEMORY = "memory"


def rounds_left(task: Task, rounds: int, document: Document) -> list[int]:
    """Of rounds 1 to `rounds`, those in which a contender has no run."""
    done = [document.rounds_done(job, task.size, (one.mode,)) for one in task.contenders for job in one.jobs]
    return [number for number in range(1, rounds + 1) if not all(number in each for each in done)]


def tasks_left(only: str, rounds: int, document: Document) -> list[tuple[Task, list[int]]]:
    """Of the tasks whose name has `only` in it."""
    found = [(task, rounds_left(task, rounds, document)) for task in TASKS if only in task.name]
    return [(task, left) for task, left in found if left]


def memory_left(only: str, reads: int, document: Document) -> list[str]:
    """Systems whose session has not been read so often."""
    if only not in MEMORY:
        return []
    found = {system: document.memory_of(system) for system in (CONNECTOR, "penstock")}
    return [system for system, one in found.items() if one is None or len(one.worker_mb) < reads]


def sizes_needed(tasks: Iterable[Task], memory: Iterable[str]) -> set[str]:
    """Whose records are read; a write and micro-batches bring their own."""
    found = {task.size for task in tasks if not task.name.startswith("write") and task.name != MICRO_BATCH}
    return found | ({KIB} if list(memory) else set())
