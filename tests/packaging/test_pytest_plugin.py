"""`penstock[pytest]` as its users have it: an environment of its own, the documented examples, no Java, no Docker."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from penstock.local.ports import PART_VARIABLE
from support.packages import LIBRARIES, OTHERS, Packages, new_environment, pip
from support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory, packages: Packages) -> Path:
    """Python of a new environment that holds `penstock[pytest]` and nothing else."""
    python = new_environment(tmp_path_factory.mktemp("env"))
    requirements = ROOT / "client" / "requirements-pytest.txt"
    pip(python, "install", "--no-deps", "--require-hashes", "-r", str(requirements))
    packages.install(python, (*LIBRARIES, *OTHERS))
    return python


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """The documented examples, each in a file of its own."""
    texts = "".join((ROOT / "docs" / name).read_text() for name in ("pytest.md", "transactions.md"))
    blocks = re.findall(r"```python\n(.*?)```", texts, re.DOTALL)
    assert len(blocks) == 6
    for number, block in enumerate(blocks):
        (tmp_path / f"test_example_{number}.py").write_text(block)
    return tmp_path


def environment(python: Path, folder: Path) -> dict[str, str]:
    """PATH has the environment's own programs only: neither java nor docker."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("PENSTOCK_", "PYTHON", "PYTEST", "JAVA")) or k == PART_VARIABLE
    }
    return {**kept, "PATH": str(python.parent), "TMPDIR": str(temporary)}


def run(python: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env=environment(python, folder),
        capture_output=True,
        text=True,
        check=False,
    )


def check_nothing_left(folder: Path) -> None:
    assert list((folder / "tmp").glob("penstock-*")) == []


@pytest.mark.parametrize("scope", ["test", "session"])
def test_documented_examples(interpreter: Path, examples: Path, scope: str) -> None:
    done = run(interpreter, examples, "--penstock-scope", scope)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout
    ready = re.search(r"penstock: (\d) started, ready in .*; seed \d+", done.stdout)
    assert ready, done.stdout
    print(ready[0])
    assert int(ready[1]) == (6 if scope == "test" else 3)  # one of them secure, for itself
    check_nothing_left(examples)


def test_a_failure_shows_logs_and_seed(interpreter: Path, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "def test_it(penstock_broker, penstock_seed):\n    assert penstock_seed == 8\n"
    )
    done = run(interpreter, tmp_path, "--penstock-seed", "7")
    assert done.returncode == 1
    assert "assert 7 == 8" in done.stdout
    assert re.search(r"-- penstock single -", done.stdout), done.stdout
    assert "--penstock-seed 7" in done.stdout
    assert run(interpreter, tmp_path, "--penstock-seed", "8").returncode == 0
    check_nothing_left(tmp_path)


def test_a_killed_run_leaves_nothing(interpreter: Path, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n\ndef test_it(penstock_cluster):\n    print('up', flush=True)\n    sys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [str(interpreter), "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env=environment(interpreter, tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert any("up" in line for line in child.stdout)
        mine = str(tmp_path / "tmp")
        assert len(processes_of(mine)) == 5
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    wait_for(lambda: not processes_of(mine), "no process outlives pytest", 120)
    wait_for(lambda: not list(Path(mine).glob("penstock-*")), "no data outlive pytest", 120)


def processes_of(directory: str) -> list[int]:
    """Brokers' processes whose settings file lies there."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline", "status"])
        if process.info["status"] != psutil.STATUS_ZOMBIE
        and any(directory in word for word in process.info["cmdline"] or ())
    ]
