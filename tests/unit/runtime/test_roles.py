"""A role as a process: signals, exit codes, what it says when it cannot start."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Coroutine, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock_core.errors import InvariantBroken
from penstock_core.limits import FEATURE_LEVEL
from penstock_core.metadata.image import Endpoint
from penstock_runtime.addresses import StartupError
from penstock_runtime.grpc_server import serve
from penstock_runtime.grpc_tools import ChannelPool, Probe, probe
from penstock_runtime.http import HttpServer
from penstock_runtime.lifecycle import EXIT_START_AGAIN, Lifecycle
from penstock_runtime.roles import Role, find_role, run_roles
from penstock_runtime.settings import RoleSettings
from support.controllers import free_ports
from support.waiting import eventually

Run = Callable[[Coroutine[Any, Any, Any]], Any]

TIMEOUT_S = 100

PROGRAM = textwrap.dedent(
    '''
    import asyncio, logging, sys
    from penstock_runtime.grpc_server import serve
    from penstock_runtime.http import HttpServer
    from penstock_runtime.roles import Role, run_role_main
    from penstock_runtime.settings import RoleSettings

    class Settings(RoleSettings):
        """A role for tests."""
        does: str = ""

    async def run(settings, life):
        http = HttpServer(settings.http_bind, life)
        endpoint = await http.start()
        server, grpc_endpoint = await serve(
            settings.grpc_bind, lambda s: None, allow_insecure_bind=life.allow_insecure_bind
        )
        does = settings.does
        if does == "raise":
            raise RuntimeError("two\\nlines")
        if does == "callback":
            asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        if does == "library":
            try:
                1 / 0
            except ZeroDivisionError:
                logging.getLogger("another_package").exception("could not divide")
        life.set_ready()
        print("port", endpoint.port, grpc_endpoint.port, flush=True)
        await life.stopping.wait()
        if does == "hang":
            print("draining", flush=True)
            await asyncio.Event().wait()
        await server.stop(0.1)
        await http.stop()

    sys.exit(run_role_main(Role("test", Settings, run)))
    '''
)


@contextmanager
def role(*argv: str) -> Iterator[subprocess.Popen[str]]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM, *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def start(process: subprocess.Popen[str]) -> tuple[int, int]:
    assert process.stdout is not None
    _, http, grpc = process.stdout.readline().split()
    return int(http), int(grpc)


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert "Traceback" not in err
    assert "Warning" not in err
    return process.returncode, err


def test_term_drains_and_exits_0() -> None:
    # A stray callback's error is logged and counted, and that is all.
    with role("--does", "callback") as process:
        http, _ = start(process)
        for path, text in (
            ("healthz", "ok"),
            ("readyz", "ready"),
            ("metrics", "process_resident_memory"),
            ("metrics", "penstock_unhandled_errors_total 1.0"),
        ):
            with urllib.request.urlopen(f"http://127.0.0.1:{http}/{path}", timeout=60) as response:
                assert text in response.read().decode()
        for path, said in (
            ("healthz", {"ok": True, "reason": None}),
            ("readyz", {"ready": True, "reason": None}),
        ):
            asked = urllib.request.Request(
                f"http://127.0.0.1:{http}/{path}", headers={"Accept": "application/json"}
            )
            with urllib.request.urlopen(asked, timeout=60) as response:
                assert json.load(response) == said
        process.send_signal(signal.SIGTERM)
        code, err = end(process)
        assert code == 0
        assert "'data_dir': 'data'" in err
        assert "ZeroDivisionError" in err


def test_the_port_for_health_says_nothing_but_whether() -> None:
    (port,) = free_ports(1)
    with role("--health-bind", f"0.0.0.0:{port}") as process:
        start(process)
        seen = {}
        for path in ("healthz", "readyz", "metrics"):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=60) as response:
                    seen[path] = response.status, response.read()
            except urllib.error.HTTPError as error:
                seen[path] = error.code, b""
                error.close()
        assert seen == {"healthz": (200, b""), "readyz": (200, b""), "metrics": (404, b"")}
        process.send_signal(signal.SIGTERM)
        assert end(process)[0] == 0
    with role("--health-bind", "no address") as process:
        code, err = end(process)
        assert code == 2
        assert "--health-bind" in err


async def test_a_role_that_is_not_ready_says_503_and_not_why() -> None:
    life = Lifecycle("test")
    server = HttpServer("127.0.0.1:0", life, health_only=True, setting="health_bind")
    endpoint = await server.start()

    async def ask() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer

    life.set_not_ready("a secret reason")
    refused = await ask()
    assert refused.startswith(b"HTTP/1.0 503")
    assert b"secret" not in refused
    life.set_ready()
    assert (await ask()).startswith(b"HTTP/1.0 200")
    await server.stop()


@pytest.mark.parametrize("form", ["json", "console"])
def test_an_error_that_a_library_logs_is_one_line(form: str) -> None:
    with role("--does", "library", "--log-format", form) as process:
        start(process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=TIMEOUT_S)
    (line,) = [line for line in err.splitlines() if "could not divide" in line]
    assert "ZeroDivisionError: division by zero" in line
    assert len(err.splitlines()) == len(re.findall(r"\d{4}-\d\d-\d\dT", err)), (
        "each line has its time: no trace"
    )


_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HTTP2_SETTINGS = bytes.fromhex("000000040000000000")


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize(
    "said",
    [
        pytest.param(_HTTP2_PREFACE, id="HTTP/2"),
        pytest.param(_HTTP2_PREFACE + _HTTP2_SETTINGS, id="gRPC"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), id="TLS"),
        pytest.param(b"\x00\x00\x00\x15\x00\x12\x00\x00PENS\x00\x0bpenstock-cli", id="Kafka"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nHost : x\r\n\r\n", id="a bad header"),
    ],
)
def test_who_speaks_another_protocol_at_the_http_port_leaves_no_trace_in_the_log(
    said: bytes, form: str
) -> None:
    with role("--log-format", form) as process:
        http, _ = start(process)
        with socket.create_connection(("127.0.0.1", http), timeout=TIMEOUT_S) as client:
            client.sendall(said)
            assert client.makefile("rb").read().startswith(b"HTTP/1.0 400 ")
        with urllib.request.urlopen(f"http://127.0.0.1:{http}/healthz", timeout=TIMEOUT_S) as response:
            assert response.read() == b"ok\n"
        process.send_signal(signal.SIGTERM)
        code, err = end(process)
    assert code == 0
    ours = ("starting", "ready", "signal", "stopping", "stopped")
    assert [line for line in err.splitlines() if not any(word in line for word in ours)] == []


def test_a_second_term_ends_at_once() -> None:
    with role("--does", "hang") as process:
        start(process)
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert process.stdout.readline() == "draining\n"
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert end(process)[0] == 143


def test_a_drain_that_takes_too_long_is_cut_off() -> None:
    with role("--does", "hang", "--shutdown-timeout-ms", "200") as process:
        start(process)
        process.send_signal(signal.SIGINT)
        code, err = end(process)
        assert code == 1
        assert "shutdown_timeout_ms = 200" in err


def test_an_unexpected_error_exits_70_and_only_json_lines_carry_the_trace() -> None:
    with role("--does", "raise", "--log-format", "json") as process:
        _, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 70
        events = [json.loads(line) for line in err.splitlines()]
        (failed,) = [e for e in events if e["level"] == "error"]
        assert failed["error"] == "RuntimeError: two lines"
        assert failed["trace"].startswith("Traceback")


def test_bad_settings_exit_2_with_one_line() -> None:
    with role("--grpc-bind", "nonsense") as process:
        code, err = end(process)
        assert (code, len(err.splitlines())) == (2, 1)
        assert err.startswith("penstock-test: --grpc-bind = nonsense")


# In one process


class Settings(RoleSettings):
    """For tests."""


def test_roles_of_one_process_end_in_reverse_order(run: Run, tmp_path: Path) -> None:
    names = ("controller", "node", "gateway")
    order: list[str] = []
    running = 0

    def make(name: str) -> Role[Settings]:
        async def main(_: Settings, life: Lifecycle) -> None:
            nonlocal running
            running += 1
            if running == len(names):
                os.kill(os.getpid(), signal.SIGTERM)
            await life.stopping.wait()
            order.append(f"{name} drains")
            # Whoever was told to stop as well would drain meanwhile.
            for _turn in range(20):
                await asyncio.sleep(0)
            order.append(f"{name} ends")

        return Role(name, Settings, main)

    async def main() -> None:
        roles = [(make(n), Settings(data_dir=tmp_path)) for n in names]
        assert await run_roles(roles) == 0
        assert order == [f"{name} {what}" for name in reversed(names) for what in ("drains", "ends")]

    run(main())


async def outcome(
    main: Callable[[Settings, Lifecycle], Awaitable[None]], **settings: Any
) -> tuple[int, list[MutableMapping[str, Any]]]:
    """Exit code and error lines of a role."""
    with capture_logs() as lines:
        code = await run_roles([(Role("test", Settings, main), Settings(**settings))])
    return code, [line for line in lines if line["log_level"] == "error"]


def test_failures_have_one_line_and_an_exit_code(run: Run) -> None:
    async def fail() -> None:
        raise KeyError("x")

    async def by_itself(_: Settings, life: Lifecycle) -> None:
        return

    async def in_a_task(_: Settings, life: Lifecycle) -> None:
        life.create_task(fail(), "failing")
        await asyncio.Event().wait()

    async def locked(_: Settings, life: Lifecycle) -> None:
        raise StartupError("data_dir = x is locked by process 5; stop it first")

    async def main() -> None:
        code, (line,) = await outcome(by_itself)
        assert (code, line["event"]) == (70, "the role ended by itself")
        code, (line,) = await outcome(in_a_task)
        assert (code, line["task"], line["error"]) == (70, "failing", "KeyError: 'x'")
        assert line["where"].startswith("test_roles.py:")
        code, (line,) = await outcome(locked)
        assert (code, line["event"]) == (2, "data_dir = x is locked by process 5; stop it first")

    run(main())


def test_what_a_failed_role_had_open_is_closed(run: Run) -> None:
    opened: list[Endpoint] = []

    async def serve_all(settings: Settings, life: Lifecycle) -> None:
        opened.append(await HttpServer(settings.http_bind, life).start())
        _, endpoint = await serve(
            settings.grpc_bind, lambda s: None, allow_insecure_bind=life.allow_insecure_bind
        )
        opened.append(endpoint)
        ChannelPool().get(endpoint.address, "storage-node")
        raise RuntimeError("later")

    async def main() -> None:
        code, _ = await outcome(serve_all)
        assert code == 70
        for endpoint in opened:
            assert await probe(endpoint.host, endpoint.port, 60_000) is Probe.REFUSED
        code, (line,) = await outcome(serve_all, http_bind="0.0.0.0:0")
        assert code == 2
        assert 'allow_plaintext = ["http"]' in line["event"]
        code, (line,) = await outcome(
            serve_all, http_bind="0.0.0.0:0", grpc_bind="0.0.0.0:0", allow_plaintext=["http"]
        )
        assert code == 2
        assert 'allow_plaintext = ["grpc"]' in line["event"]
        code, _ = await outcome(
            serve_all, http_bind="0.0.0.0:0", grpc_bind="0.0.0.0:0", allow_plaintext=["http", "grpc"]
        )
        assert code == 70
        server, taken = await serve("127.0.0.1:0", lambda s: None, allow_insecure_bind=False)
        for name in ("http_bind", "grpc_bind"):
            code, (line,) = await outcome(serve_all, **{name: taken.address})
            assert code == 2
            assert f"{name} = {taken.address}: port {taken.port} is taken" in line["event"]
        await server.stop(None)

    run(main())


def test_the_failure_of_one_role_ends_all(run: Run, tmp_path: Path) -> None:
    ended: list[str] = []

    async def serve(_: Settings, life: Lifecycle) -> None:
        await life.stopping.wait()
        ended.append("serve")

    async def fail(_: Settings, life: Lifecycle) -> None:
        raise InvariantBroken("x")

    async def main() -> None:
        settings = Settings(data_dir=tmp_path)
        code = await run_roles(
            [(Role("a", Settings, serve), settings), (Role("b", Settings, fail), settings)]
        )
        assert (code, ended) == (70, ["serve"])

    run(main())


def test_a_role_that_has_nothing_left_to_do_ends_no_other(run: Run, tmp_path: Path) -> None:
    order: list[str] = []

    async def leave(_: Settings, life: Lifecycle) -> None:
        life.leave("removed")
        order.append("left")

    async def serve(_: Settings, life: Lifecycle) -> None:
        for _turn in range(50):
            await asyncio.sleep(0)
        assert not life.stopping.is_set()
        order.append("serves")
        os.kill(os.getpid(), signal.SIGTERM)
        await life.stopping.wait()

    async def main() -> None:
        settings = Settings(data_dir=tmp_path)
        assert await run_roles([(Role("a", Settings, leave), settings)]) == 0, "alone it ends the process"
        assert order == ["left"]
        code = await run_roles(
            [(Role("a", Settings, leave), settings), (Role("b", Settings, serve), settings)]
        )
        assert (code, order) == (0, ["left", "left", "serves"])

    run(main())


def test_a_role_may_ask_for_its_process_to_begin_anew(run: Run, tmp_path: Path) -> None:
    async def again(_: Settings, life: Lifecycle) -> None:
        life.start_again("another life", "--spare")

    async def again_after_term(_: Settings, life: Lifecycle) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await life.stopping.wait()
        life.start_again("another life", "--spare")

    async def again_after_failure(_: Settings, life: Lifecycle) -> None:
        life.fatal("it broke", 70)
        life.start_again("another life", "--spare")

    async def main() -> None:
        for role, expected in (
            (again, (EXIT_START_AGAIN, ["--spare"])),
            (again_after_term, (0, [])),
            (again_after_failure, (70, [])),
        ):
            flags: list[str] = []
            code = await run_roles([(Role("a", Settings, role), Settings(data_dir=tmp_path))], flags)
            assert (code, flags) == expected

    run(main())


def test_an_unknown_role_names_the_package() -> None:
    with pytest.raises(StartupError, match="install the package penstock-nonsense"):
        find_role("nonsense")


class Timers:
    """An event loop of timers only, whose time the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.due: list[tuple[float, Callable[..., object], tuple[Any, ...]]] = []
        self.cancelled = 0

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Timers:
        self.due.append((when, callback, args))
        return self

    def cancel(self) -> None:
        self.cancelled += 1

    def fire(self, late_s: float) -> float:
        """Call the timer that is set, so much after its time; the time that it was set for."""
        ((when, callback, args),) = self.due
        self.due.clear()
        self.now_s = when + late_s
        callback(*args)
        return when


def test_a_tick_comes_every_100_ms_and_tells_how_late_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    life, timers = Lifecycle("test"), Timers()
    life._loop_metrics.cpu_s = lambda: timers.now_s / 2  # a busy loop
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "get_running_loop", lambda: timers)
        life.start_ticking()
    lag = "penstock_loop_lag_seconds_max"
    assert timers.fire(late_s=0.0) == pytest.approx(0.1)
    assert timers.fire(late_s=0.5) == pytest.approx(0.2)
    assert timers.fire(late_s=0.2) == pytest.approx(0.8)
    assert life.loop_ticks == 3
    told = life.registry.get_sample_value
    assert told("penstock_loop_lag_seconds_sum") == pytest.approx(0.7)
    assert told("penstock_loop_lag_seconds_bucket", {"le": "0.25"}) == 2
    assert (told("penstock_loop_cpu_seconds_total") or 0) > 0
    # Two who scrape see the same; it is forgotten a minute later.
    assert life.registry.get_sample_value(lag) == pytest.approx(0.5)
    assert life.registry.get_sample_value(lag) == pytest.approx(0.5)
    for _ in range(605):
        timers.fire(late_s=0.0)
    assert life.registry.get_sample_value(lag) == pytest.approx(0.2)
    for _ in range(20):
        timers.fire(late_s=0.0)
    assert life.registry.get_sample_value(lag) == pytest.approx(0.0, abs=1e-9)
    # A loop that stands still is not healthy; it is once it turns again.
    assert life.health_reason() is None
    timers.now_s += 3.0
    assert life.health_reason() == "the event loop has not turned for 2.9 s"
    timers.fire(late_s=2.9)
    assert life.health_reason() is None
    life.stop_ticking()
    assert timers.cancelled == 1


def test_a_loop_at_rest_ticks_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tick of a process that does nothing else costs more than what it looks after."""
    life, timers = Lifecycle("test"), Timers()
    cpu_s = 0.0
    life._loop_metrics.cpu_s = lambda: cpu_s
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "get_running_loop", lambda: timers)
        life.start_ticking()
    assert timers.fire(late_s=0.0) == pytest.approx(0.1)
    for number in range(8):
        cpu_s += 0.01
        assert timers.fire(late_s=0.0) == pytest.approx(0.1 + 0.25 * (number + 1))
        assert life.is_at_rest
    # From its first busy quarter of a second on it is looked at often again.
    cpu_s += 0.05
    assert timers.fire(late_s=0.0) == pytest.approx(2.35)
    assert not life.is_at_rest
    assert timers.fire(late_s=0.02) == pytest.approx(2.45)
    assert timers.fire(late_s=0.0) == pytest.approx(2.57)
    assert timers.fire(late_s=0.0) == pytest.approx(2.82)
    assert life.health_reason() is None
    timers.now_s += 3.0
    assert life.health_reason() is not None
    life.stop_ticking()


def test_readiness_and_ticks(run: Run) -> None:
    async def main() -> None:
        life = Lifecycle("test", "node-1")
        assert life.ready_reason() == "starting"
        life.set_ready()
        assert life.ready_reason() is None
        life.set_not_ready("no controller for 5 s")
        assert life.ready_reason() == "no controller for 5 s"
        life.start_ticking()
        await eventually(lambda: life.loop_ticks >= 2, "ticks")
        life.stop_ticking()
        life.request_stop("test")
        assert life.ready_reason() == "stopping"
        info = life.process_info()
        assert (len(info.boot_id), info.feature_level) == (16, FEATURE_LEVEL)
        assert info.version

    run(main())


CORE = """
import os, resource, sys
from penstock_runtime.roles import _prepare_process
hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
if sys.argv[1] == "a role":
    _prepare_process()
    assert resource.getrlimit(resource.RLIMIT_CORE)[1] == hard  # who wants one can have it
os.abort()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="core_pattern is Linux'")
def test_a_role_that_crashes_leaves_no_core_with_its_keys_in_it(tmp_path: Path) -> None:
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0 or pattern[0] in "|/":
        pytest.skip(f"nobody leaves one here: {pattern}")
    for who in ("any process", "a role"):
        folder = tmp_path / who
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", CORE, who], cwd=folder, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == -signal.SIGABRT, done.stderr
        assert bool(list(folder.iterdir())) == (who == "any process")


DESCRIPTORS = """
from pathlib import Path
from penstock_runtime.roles import _prepare_process
_prepare_process()
lines = Path("/proc/self/status").read_text().splitlines()
print(*(line.split()[1] for line in lines if line.startswith("FDSize")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="FDSize is Linux'")
def test_a_thousand_clients_make_no_table_grow() -> None:
    """A table that grows while there are threads holds up the event loop."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    done = subprocess.run(
        [sys.executable, "-c", DESCRIPTORS], capture_output=True, text=True, timeout=60, check=True
    )
    assert int(done.stdout) >= min(limit, 10_000)
