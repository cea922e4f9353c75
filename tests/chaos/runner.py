"""Runs scenarios one after another, each with a cluster of its own, and never stops at a failure."""

from __future__ import annotations

import random
import shutil
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from chaos.cluster import Cluster
from chaos.janitor import Janitor
from chaos.run import ACKS_PER_S_MIN, Result, Run, carry_out, judge
from chaos.scenario import Scenario
from chaos.scene import Phases

NOTE_CHARS_MAX = 400

Tell = Callable[[Result], None]


class Interrupted(Exception):
    """Someone asked the whole run to end."""


def run_scenario(
    scenario: Scenario,
    phases: Phases,
    seed: int,
    parent: Path,
    *,
    keep: bool = False,
    is_secure: bool = False,
    is_transactional: bool = False,
    is_audited: bool = False,
) -> Result:
    """One scenario, with a transactional load if it or the caller says so, and an audit by Spark at its end if the
    caller does. The cluster's directory is kept when something went wrong, or with `keep`."""
    result = Result(scenario.name, seed=seed)
    is_transactional = is_transactional or scenario.is_transactional
    why = scenario.missing()
    if is_secure and is_transactional:
        why = "the user of a secure cluster's load has no right to transactions"
    if is_secure and is_audited:
        why = "the user of a secure cluster's load has no file for Spark"
    if why:
        result.status = "skipped"
        result.notes.append(why)
        return result
    directory = Path(tempfile.mkdtemp(prefix=f"{scenario.name}-", dir=parent))
    result.directory = str(directory)
    run: Run | None = None
    try:
        # By name and seed, so that a scenario does the same alone as among others.
        dice = random.Random(f"{seed} {scenario.name}")
        with (
            Janitor() as janitor,
            Cluster(directory, scenario.needs, janitor, is_secure=is_secure) as cluster,
        ):
            run = Run(cluster, phases, dice, is_transactional=is_transactional, is_audited=is_audited)
            _carry_out_and_judge(run, scenario, result)
    except AssertionError as error:
        result.status = "failed"
        result.notes.append(str(error)[:NOTE_CHARS_MAX])
    except (KeyboardInterrupt, Interrupted):
        raise
    except Exception as error:
        result.status = "failed"
        last = traceback.extract_tb(error.__traceback__)[-1]
        result.notes.append(f"{type(error).__name__}: {error} ({last.name}:{last.lineno})"[:NOTE_CHARS_MAX])
    if run is not None:
        result.notes[:0] = run.notes
    if result.good and not keep:
        shutil.rmtree(directory, ignore_errors=True)
        result.directory = ""
    return result


def _carry_out_and_judge(run: Run, scenario: Scenario, result: Result) -> None:
    failure: AssertionError | None = None
    try:
        carry_out(run, scenario.inject, result)
    except AssertionError as error:
        # Still judged: what was lost by then matters more than what came late.
        failure = error
        try:
            run.abandon()
        except AssertionError as second:
            raise AssertionError(f"{failure}; then {second}") from None
    try:
        verdict = judge(run, result)
    except AssertionError as second:
        raise AssertionError(f"{failure}; then {second}" if failure else str(second)) from None
    result.notes.extend(verdict.lines())
    if verdict.forbidden:
        result.status = "anomalies"
    if failure is not None:
        raise failure
    if result.status == "ok" and result.acks_per_s < ACKS_PER_S_MIN:
        result.status = "void"
        result.notes.append(
            f"{result.acks_per_s:.0f} acks/s before the fault, {ACKS_PER_S_MIN:.0f} are needed"
        )


def run_all(
    scenarios: Sequence[Scenario],
    phases: Phases,
    seed: int,
    parent: Path,
    *,
    keep: bool,
    is_secure: bool = False,
    is_transactional: bool = False,
    is_audited: bool = False,
    tell: Tell,
) -> list[Result]:
    """All of them; `tell` hears of each result at once. Ctrl-C ends the run and keeps what there is."""
    results: list[Result] = []
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)
    for scenario in scenarios:
        try:
            result = run_scenario(
                scenario,
                phases,
                seed,
                parent,
                keep=keep,
                is_secure=is_secure,
                is_transactional=is_transactional,
                is_audited=is_audited,
            )
        except (KeyboardInterrupt, Interrupted):
            break
        results.append(result)
        tell(result)
    return results


def _interrupt(_number: int, _frame: object) -> None:
    raise Interrupted


def as_json(results: Sequence[Result]) -> list[dict[str, object]]:
    return [asdict(result) | {"good": result.good} for result in results]
