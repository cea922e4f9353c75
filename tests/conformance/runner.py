"""Scenario x client x target, several at a time, each with its deadline; then Penstock's outcomes beside Kafka's.

A cell that is red is run once more when everything else is done, so that a busy machine is not taken for a
difference; what the second run says counts. A hanging scenario's thread is left behind (it is a daemon), its
client is not used again.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import json
import threading
import time
import traceback
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from conformance.client import OPERATIONS, Client, ClientError, Unsupported
from conformance.clients import registry
from conformance.frame import SCENARIOS, Cell, Outcome, Scenario
from conformance.harness import Harness
from conformance.known import KNOWN, explanation
from conformance.remote import Remote
from conformance.targets import KAFKA, NotThere, Worlds

STRING_SHOWN_MAX = 80
DIFF_LINES_MAX = 60
_COUNTER = itertools.count(1)


class Tracked(Client):
    """A client as a scenario sees it: consumers that it leaves open are closed, processes that it spawned end."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.bootstrap)
        self._client = client
        self.open: set[tuple[str, str]] = set()
        """How each thing that is open is closed, and its name."""
        self.spawned: list[Client] = []

    def spawn(self) -> Client:
        self.spawned.append(self._client.spawn())
        return self.spawned[-1]

    def tidy(self) -> None:
        """After the scenario."""
        for close, name in sorted(self.open):
            with contextlib.suppress(ClientError):  # one that broke is closed as well as it can be
                getattr(self._client, close)(name)
        for client in self.spawned:
            client.kill()
            client.close()


def _tracked(op: str) -> Callable[..., Any]:
    def method(self: Tracked, *words: Any, **named: Any) -> Any:
        result = getattr(self._client, op)(*words, **named)
        if op.startswith("open_"):
            self.open.add((op.replace("open_", "close_"), words[0] if words else named["name"]))
        elif op.startswith("close_"):
            self.open.discard((op, words[0] if words else named["name"]))
        return result

    return method


for _op in OPERATIONS:
    setattr(Tracked, _op, _tracked(_op))


class Clients:
    """Clients in processes of their own, idle, for another scenario: starting a JVM is dear."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, str], list[Client]] = defaultdict(list)
        self._lock = threading.Lock()

    def take(self, name: str, bootstrap: str) -> Client:
        with self._lock:
            idle = self._idle[(name, bootstrap)]
            if idle:
                return idle.pop()
        return registry.make(name, bootstrap)

    def give_back(self, name: str, client: Client) -> None:
        if not isinstance(client, Remote):
            client.close()
            return
        with self._lock:
            self._idle[(name, client.bootstrap)].append(client)

    def close(self) -> None:
        with self._lock:
            for clients in self._idle.values():
                for client in clients:
                    client.close()
            self._idle.clear()


class Runner:
    """Runs cells; `tell` hears of each one as it ends."""

    def __init__(self, worlds: Worlds, tell: Callable[[Cell], None], jobs: int) -> None:
        self._worlds = worlds
        self._tell = tell
        self._jobs = jobs
        self._clients = Clients()
        self._harnesses: dict[str, Harness] = {}
        self._lock = threading.Lock()

    def run(
        self, scenarios: Sequence[Scenario], clients: Sequence[str], targets: Sequence[str]
    ) -> list[Cell]:
        """Every cell, not compared yet."""
        wanted = [
            (scenario, client, target)
            for scenario in scenarios
            for client in clients
            if (client in scenario.clients if scenario.clients else client not in registry.ONLY_NAMED)
            for target in targets
        ]
        together = [cell for cell in wanted if not cell[0].alone]
        with ThreadPoolExecutor(self._jobs) as pool:
            done = list(pool.map(lambda cell: self.cell(*cell), together))
        return done + [self.cell(*cell) for cell in wanted if cell[0].alone]

    def settled(self, cells: list[Cell], recorded: Mapping[str, Outcome] | None = None) -> list[Cell]:
        """The compared cells; the red ones after a second run of theirs, alone, Kafka's included."""
        again = {(c.scenario, c.client) for c in compare(cells, recorded) if c.status in ("red", "none")}
        kept = [cell for cell in cells if (cell.scenario, cell.client) not in again]
        for cell in cells:
            if (cell.scenario, cell.client) in again:
                kept.append(self.cell(SCENARIOS[cell.scenario], cell.client, cell.target))
        return compare(kept, recorded)

    def close(self) -> None:
        """End the clients."""
        self._clients.close()
        for harness in self._harnesses.values():
            harness.close()

    def cell(self, scenario: Scenario, client: str, target: str) -> Cell:
        """Run one scenario with one client on one target."""
        begun = time.monotonic()
        cell = Cell(scenario.name, client, target, "n/a")
        why = registry.missing(client)
        if why is not None:
            cell.reason = why
        else:
            try:
                bootstrap = self._worlds.address(target, scenario.world)
            except NotThere as error:
                cell = replace(cell, status="none" if target == KAFKA else "red", reason=str(error))
            else:
                begun = time.monotonic()
                cell = self._play(scenario, cell, bootstrap)
        cell = replace(cell, seconds=time.monotonic() - begun)
        self._tell(cell)
        return cell

    def _play(self, scenario: Scenario, cell: Cell, bootstrap: str) -> Cell:
        with self._lock:
            harness = self._harnesses.get(bootstrap)
            if harness is None:
                harness = Harness(bootstrap, self._worlds.doors.get(bootstrap))
                self._harnesses[bootstrap] = harness
        prefix = f"{scenario.name}.{cell.client}.{cell.target}.{next(_COUNTER)}"
        client = self._clients.take(cell.client, bootstrap)
        tracked = Tracked(client)
        ended = threading.Event()

        def play() -> None:
            try:
                cell.outcome = _neutral(scenario.play(tracked, harness.case(prefix, cell.target)), prefix)
                cell.status = "ran"
                tracked.tidy()
            except Unsupported as error:
                cell.status, cell.reason = "n/a", str(error)
                tracked.tidy()
            except ClientError as error:
                cell.status, cell.reason = "red", f"raised {error.name}"
                cell.outcome = _neutral({"raised": error.name, "message": error.message}, prefix)
                tracked.tidy()
            except Exception as error:  # shown as the cell's reason
                cell.status, cell.reason = "red", f"raised {type(error).__name__}: {error}"
                cell.diff = traceback.format_exc().splitlines()[-8:]
            ended.set()

        threading.Thread(target=play, name=prefix, daemon=True).start()
        if not ended.wait(scenario.seconds):
            # A copy: the thread that is left behind goes on to write into the cell.
            cell = replace(cell, status="red", reason=f"hang: not over within {scenario.seconds:.0f} s")
            for other in (client, *tracked.spawned):
                if isinstance(other, Remote):
                    other.kill()
        elif cell.status == "red":
            threading.Thread(target=client.close, daemon=True).start()
        else:
            self._clients.give_back(cell.client, client)
        return cell


def compare(cells: Iterable[Cell], recorded: Mapping[str, Outcome] | None = None) -> list[Cell]:
    """Penstock's cells with their colour, and Kafka's as "green", "n/a" or "none".

    Without Kafka's cells, `recorded` has its outcomes by "scenario client".
    """
    all_cells = list(cells)
    oracle = {key(cell): cell for cell in all_cells if cell.target == KAFKA}
    result = []
    for cell in all_cells:
        judge = oracle.get(key(cell))
        if cell.target == KAFKA:
            status = {"ran": "green", "red": "none"}.get(cell.status, cell.status)
            result.append(replace(cell, status=status))
        elif cell.status == "red" and cell.outcome is not None and _why_known(cell):
            result.append(replace(cell, status="known", reason=_why_known(cell)))
        elif cell.status != "ran":
            result.append(cell)
        elif judge is not None and judge.status != "ran":
            reason = f"Kafka: {judge.reason}"
            result.append(replace(cell, status="n/a" if judge.status == "n/a" else "none", reason=reason))
        elif judge is None and (recorded is None or key(cell) not in recorded):
            result.append(replace(cell, status="none", reason="no outcome of Kafka is at hand"))
        else:
            wanted = judge.outcome if judge is not None else (recorded or {})[key(cell)]
            result.append(_judged(cell, wanted))
    return result


def key(cell: Cell) -> str:
    """What names an outcome in the recorded oracle."""
    return f"{cell.scenario} {cell.client}"


def _why_known(cell: Cell) -> str:
    return KNOWN.get((cell.scenario, cell.client, cell.target), "")


def _judged(cell: Cell, wanted: Outcome) -> Cell:
    if cell.outcome == wanted:
        return replace(cell, status="green")
    before, after = (json.dumps(o, indent=1, sort_keys=True).splitlines() for o in (wanted, cell.outcome))
    if why := _why_known(cell) or _pages(cell, wanted):
        return replace(cell, status="known", reason=why)
    if isinstance(cell.outcome, dict) and isinstance(wanted, dict):  # what a page explains is no news
        kept = {name for name in {*wanted, *cell.outcome} if not _page(cell, name, wanted)}
        both = ({k: v for k, v in o.items() if k in kept} for o in (wanted, cell.outcome))
        before, after = (json.dumps(o, indent=1, sort_keys=True).splitlines() for o in both)
    lines = list(difflib.unified_diff(before, after, KAFKA, cell.target, lineterm="", n=4))
    return replace(
        cell, status="red", reason=cell.reason or "differs from Kafka", diff=lines[:DIFF_LINES_MAX]
    )


def _page(cell: Cell, name: str, wanted: Outcome) -> str:
    kafkas, ours = wanted.get(name), cell.outcome.get(name)
    return "" if kafkas == ours else explanation(f"{cell.scenario}/{name}", cell.target, kafkas, ours)


def _pages(cell: Cell, wanted: Outcome) -> str:
    """The pages that explain every entry that differs; "" if one is not explained."""
    if not isinstance(cell.outcome, dict) or not isinstance(wanted, dict):
        return ""
    differ = [name for name in {*wanted, *cell.outcome} if wanted.get(name) != cell.outcome.get(name)]
    pages = [_page(cell, name, wanted) for name in differ]
    if not all(pages):
        return ""
    return f"{len(differ)} of {len(wanted)} entries differ as {', '.join(sorted(set(pages)))} say(s)"


def _neutral(outcome: Outcome, prefix: str) -> Outcome:
    """The outcome with this run's names put back and long strings shortened; as JSON gives it back."""
    return json.loads(json.dumps(_walk(outcome, prefix), sort_keys=True))


def _walk(value: Any, prefix: str) -> Any:
    if isinstance(value, str):
        text = value.replace(f"{prefix}.", "~")
        if len(text) > STRING_SHOWN_MAX:
            return f"{text[:20]}... {len(text)} characters, crc {zlib.crc32(text.encode()):08x}"
        return text
    if isinstance(value, dict):
        return {_walk(str(name), prefix): _walk(one, prefix) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_walk(one, prefix) for one in value]
    return value
