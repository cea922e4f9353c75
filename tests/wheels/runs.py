"""Wheels, environments, and the lines in them: one environment after the other, each removed before the next."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement

from support.packages import LIBRARIES, OTHERS, SPARK, copy_packages, new_environment
from wheels import lines
from wheels.apart import Apart
from wheels.bounds import Wheel, constraints, lower_bounds, pulled_in, read_wheel
from wheels.lines import Step

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = (*LIBRARIES, *OTHERS, SPARK)
INSTALLED: Final = {"penstock": ("local",), "penstock-spark": ()}
"""What README's lines need, with extras; the rest comes with it. Each extra is installed after they were run."""
INSTALL_TIMEOUT_S: Final = 1_800.0
STEP_TIMEOUT_S: Final = 1_200.0
"""Many times what a step takes, Spark's start included, on a busy machine."""
_TOLD_MAX: Final = 4_000
"""Characters of what a step that failed has said, from the end."""
_IMPORTS: Final = Path(__file__).with_name("imports.py")


@dataclass(frozen=True)
class Kind:
    """An environment that is to be made. `spark` is pip's word for PySpark's version."""

    name: str
    what: str
    spark: str
    oldest: bool = False
    """Everything else is of the oldest version that the wheels allow, setuptools that builds them too."""


KINDS: Final = (
    Kind("newest", "the newest versions allowed, PySpark 4.3", "==4.3.*"),
    Kind("oldest", "the oldest versions allowed, the newest PySpark 4.2", "==4.2.*", oldest=True),
    Kind("floor", "the oldest versions allowed, the oldest PySpark too", "", oldest=True),
)


@dataclass
class Done:
    """One step that was run; `problem` is empty where it went well."""

    step: Step
    seconds: float
    problem: str = ""
    output: str = ""


@dataclass
class Result:
    """A row of the table."""

    kind: Kind
    python: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    done: list[Done] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    """Lines that were left out, as the machine has not their program."""
    seconds: float = 0.0

    @property
    def failed(self) -> Done | None:
        return next((each for each in self.done if each.problem), None)

    @property
    def is_ok(self) -> bool:
        return bool(self.done) and self.failed is None

    def as_json(self) -> dict[str, Any]:
        steps = [
            {
                "page": each.step.page,
                "line": each.step.words,
                "seconds": round(each.seconds, 1),
                "problem": each.problem,
                "output": each.output if each.problem else "",
            }
            for each in self.done
        ]
        return {
            "name": self.kind.name,
            "what": self.kind.what,
            "ok": self.is_ok,
            "python": self.python,
            "versions": self.versions,
            "seconds": round(self.seconds, 1),
            "steps": steps,
            "absent": self.absent,
        }


class Failed(Exception):
    """A step did not go well: the rest of its environment is not run."""


class Environment:
    """One environment in a folder of its own, from wheels to the last line."""

    def __init__(self, kind: Kind, folder: Path, base: str, say: Callable[[str], None]) -> None:
        self._kind, self._folder, self._base, self._say = kind, folder, base, say
        self._constraints = folder / "constraints.txt"
        self.result = Result(kind)

    def run(self) -> Result:
        """All of it, until something fails."""
        begun = time.monotonic()
        self._folder.mkdir()
        with suppress(Failed):
            wheels = self._build()
            by_name = {wheel.name: wheel for wheel in wheels}
            python = self._prepare(wheels)
            words = [by_name[name].with_extras(*extras) for name, extras in INSTALLED.items()]
            self._install(python, "what README's lines need", wheels, words)
            self._look(python)
            self._run_lines([*lines.cluster_steps(), *lines.spark_steps()])
            if self._kind.oldest:
                self._spark_alone(wheels)
            self._constrain(wheels)
            words = [wheel.with_extras(*wheel.extras) for wheel in wheels]
            self._install(python, "every extra", wheels, words)
            modules = Step("", "import whatever the wheels do", folder="imports")
            shutil.copy(_IMPORTS, self._folder)
            argv = ["python", "-P", str(self._folder / _IMPORTS.name), *by_name]
            self._run_lines([modules], argv={modules: argv})
            self._look(python)
        self.result.seconds = time.monotonic() - begun
        return self.result

    # -- from outside ------------------------------------------------------------------------------

    def _build(self) -> list[Wheel]:
        """The wheels of all packages, as pip builds them for anybody: in an environment that it makes for it."""
        sources, target = self._folder / "sources", self._folder / "wheels"
        copy_packages(sources, PACKAGES)
        needed = [
            Requirement(text)
            for package in PACKAGES
            for text in tomllib.loads((ROOT / package / "pyproject.toml").read_text())["build-system"][
                "requires"
            ]
        ]
        self._constraints.write_text(constraints(lower_bounds(needed)) if self._kind.oldest else "")
        words = [
            *("wheel", "--no-deps", "--wheel-dir", str(target)),
            "--build-constraint",
            str(self._constraints),
        ]
        self._pip("wheels of all packages", *words, *(str(sources / package) for package in PACKAGES))
        shutil.rmtree(sources)
        return sorted(map(read_wheel, target.glob("*.whl")), key=lambda wheel: wheel.name)

    def _prepare(self, wheels: Sequence[Wheel]) -> Path:
        """An empty environment; and the constraints of all that is installed into it."""
        python = new_environment(self._folder / "env", self._base)
        version = subprocess.run([str(python), "--version"], capture_output=True, text=True, check=True)
        self.result.python = version.stdout.split()[1]
        self._constrain(wheels)
        return python

    def _spark_alone(self, wheels: Sequence[Wheel]) -> None:
        """penstock-spark without the cluster, whose packages ask for newer ones beside it: so its own lower bounds are
        reached. The lines of Python run there, the command in the first environment."""
        needed = [wheel for wheel in wheels if wheel.name in pulled_in(wheels, "penstock-spark")]
        self._constrain(needed)
        python = new_environment(self._folder / "spark", self._base)
        self._install(python, "penstock-spark alone", needed, [str(wheel.path) for wheel in needed])
        steps = [step._replace(folder="alone") for step in lines.spark_steps()]
        self._run_lines(steps, python_in="spark")

    def _constrain(self, wheels: Sequence[Wheel]) -> None:
        text = ""
        if self._kind.oldest:
            own = {wheel.name for wheel in wheels}
            bounds = lower_bounds((each for wheel in wheels for each in wheel.requires), own)
            if self._kind.spark:
                del bounds["pyspark"]
            text = constraints(bounds)
        self._constraints.write_text(text + (f"pyspark{self._kind.spark}\n" if self._kind.spark else ""))

    def _install(self, python: Path, what: str, wheels: Sequence[Wheel], words: Sequence[str]) -> None:
        """All wheels by their path, so that no index is asked for a name of ours, and some of them with extras."""
        paths = [str(wheel.path) for wheel in wheels if not any(str(wheel.path) in word for word in words)]
        common = ["--python", str(python)]
        install = [*common, "install", "--no-compile", "--constraint", str(self._constraints)]
        self._pip(what, *install, *paths, *words)
        self._pip("pip check", *common, "check")

    def _look(self, python: Path) -> None:
        listed = subprocess.run(
            [sys.executable, "-m", "pip", "--python", str(python), "list", "--format", "json"],
            capture_output=True,
            text=True,
            check=True,
        )
        self.result.versions = {each["name"]: each["version"] for each in json.loads(listed.stdout)}

    def _pip(self, what: str, *words: str) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        command = [sys.executable, "-m", "pip", "--quiet", *words]

        def call() -> tuple[str, str]:
            try:
                done = subprocess.run(
                    command,
                    cwd=self._folder,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=INSTALL_TIMEOUT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return "", f"not within {INSTALL_TIMEOUT_S:.0f} s"
            return done.stdout, f"exit code {done.returncode}" if done.returncode else ""

        self._take(Step("", what), call)

    # -- on the machine of its own -----------------------------------------------------------------

    def _run_lines(
        self, steps: Sequence[Step], argv: dict[Step, list[str]] | None = None, python_in: str = "env"
    ) -> None:
        with Apart(ROOT, self._base) as apart:
            for number, step in enumerate(steps):
                if not step.python and not argv and not lines.is_here(step.text):
                    self.result.absent.append(step.words)
                    continue
                folder = self._folder / step.folder
                folder.mkdir(exist_ok=True)
                words = (argv or {}).get(step) or self._words(step, folder / f"step-{number}.py")
                activated = [
                    "bash",
                    "-euo",
                    "pipefail",
                    "-c",
                    f'. {self._folder}/{python_in if step.python else "env"}/bin/activate && exec "$@"',
                    "-",
                ]

                def call(
                    words: Sequence[str] = (*activated, *words), folder: Path = folder
                ) -> tuple[str, str]:
                    return apart.run(words, folder, self._environment(), STEP_TIMEOUT_S)

                self._take(step, call)

    def _words(self, step: Step, script: Path) -> list[str]:
        if not step.python:
            return ["bash", "-euo", "pipefail", "-c", step.text]
        script.write_text(f"{step.before}\n{step.text}\n{step.after}")
        return ["python", "-P", str(script)]

    def _environment(self) -> dict[str, str]:
        """Of somebody who has just come: nothing of ours, and no module from where a command is called."""
        temporary = self._folder / "tmp"
        temporary.mkdir(exist_ok=True)
        kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "JAVA_HOME")}
        own = {"HOME": str(self._folder), "TMPDIR": str(temporary), "PYTHONSAFEPATH": "1", "TERM": "xterm"}
        return {**kept, **own}

    def _take(self, step: Step, call: Callable[[], tuple[str, str]]) -> None:
        """Runs it and notes what became of it. Raises Failed."""
        begun = time.monotonic()
        output, problem = call()
        if not problem and lines.SAYS.get(step.words, "") not in output:
            problem = f"does not say {lines.SAYS[step.words]!r}"
        done = Done(step, time.monotonic() - begun, problem, output[-_TOLD_MAX:])
        self.result.done.append(done)
        self._say(
            f"{self._kind.name}: {step.words} ({done.seconds:.0f} s){f': {problem}' if problem else ''}"
        )
        if problem:
            raise Failed


def table(results: Sequence[Result]) -> str:
    """A row for each environment; then what failed, with what it said."""
    rows = [("environment", "Python", "PySpark", "packages", "steps", "seconds", "result")]
    for each in results:
        rows.append(
            (
                each.kind.name,
                each.python,
                each.versions.get("pyspark", ""),
                str(len(each.versions)),
                str(len(each.done)),
                f"{each.seconds:.0f}",
                "pass" if each.is_ok else "FAILED",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    text = "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows)
    for each in results:
        if (failed := each.failed) is not None:
            where = f" ({failed.step.page})" if failed.step.page else ""
            text += f"\n{each.kind.name}: {failed.step.words}{where}: {failed.problem}\n{failed.output}\n"
        for line in each.absent:
            text += f"\n{each.kind.name}: not run, its program is not here: {line}\n"
    return text
