"""pytest fixtures with real brokers: `penstock_broker`, `penstock_cluster`, `penstock_seed`.

Installed by `pip install 'penstock[pytest]'`; docs/pytest.md has examples. Each test gets a
broker of its own, or, with `--penstock-scope session`, shares one with all others. Of a test marked
`penstock(secure=True)` it has TLS, users and ACLs. A test
that fails shows the ends of its brokers' logs and the seed.
"""

# `penstock.testing` is imported where it is used: pytest loads plugins in every run, with brokers or without.

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock.testing import Broker, Cluster

_READY = pytest.StashKey[list[float]]()
_SEED = pytest.StashKey[int]()
_USED = pytest.StashKey["list[Broker]"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("penstock")
    group.addoption(
        "--penstock-scope",
        choices=("test", "session"),
        help="a broker for each test (default), or one for all of them",
    )
    group.addoption("--penstock-seed", type=int, help="what tests leave to chance is so by this number")
    group.addoption(
        "--penstock-secure",
        action="store_true",
        default=None,
        help="brokers with TLS, users and ACLs, where a test does not say otherwise",
    )
    parser.addini("penstock_secure", "as --penstock-secure", type="bool", default=False)
    parser.addini("penstock_scope", "as --penstock-scope", default="test")
    parser.addini("penstock_cluster_nodes", "storage nodes of penstock_cluster", default="3")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_READY] = []
    config.addinivalue_line(
        "markers", "penstock(secure): what the test's broker is like; secure: TLS, users, ACLs"
    )
    asked = config.getoption("--penstock-seed")
    config.stash[_SEED] = random.SystemRandom().randrange(1, 2**31) if asked is None else asked
    scope = _scope(config)
    if scope not in ("test", "session"):
        raise pytest.UsageError(f"penstock_scope = {scope}: choose test or session")


def pytest_unconfigure() -> None:
    used = sys.modules.get("penstock.testing")
    if used is not None:
        used.dismiss_janitor()


def _secure(request: pytest.FixtureRequest) -> bool:
    """Whether this test wants a secure one."""
    marker = request.node.get_closest_marker("penstock")
    if marker is not None:
        unknown = sorted(marker.kwargs.keys() - {"secure"})
        if unknown or marker.args:
            raise pytest.UsageError("the marker penstock takes secure=True or secure=False, nothing else")
        if "secure" in marker.kwargs:
            return bool(marker.kwargs["secure"])
    config = request.config
    return bool(config.getoption("--penstock-secure") or config.getini("penstock_secure"))


def _shared(request: pytest.FixtureRequest, what: str) -> Any:
    """The one of the session."""
    return request.getfixturevalue(f"_penstock_session_{'secure_' if _secure(request) else ''}{what}")


def _scope(config: pytest.Config) -> str:
    return str(config.getoption("--penstock-scope") or config.getini("penstock_scope"))


@pytest.fixture(scope="session")
def penstock_seed(pytestconfig: pytest.Config) -> int:
    """The number that decides what tests leave to chance; `--penstock-seed` sets it."""
    return pytestconfig.stash[_SEED]


@pytest.fixture
def penstock_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker in a child process: `bootstrap` is its Kafka address, `gateway` its gRPC one."""
    if _scope(request.config) == "session":
        yield _used(request, _shared(request, "broker"))
        return
    with _broker(request.config, _secure(request)) as made:
        yield _used(request, made)


@pytest.fixture
def penstock_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of processes with fault calls, healed after each test that shares it."""
    if _scope(request.config) == "session":
        shared: Cluster = _shared(request, "cluster")
        yield _used(request, shared)
        shared.heal()
        return
    with _cluster(request.config, _secure(request)) as made:
        yield _used(request, made)


@pytest.fixture(scope="session")
def _penstock_session_broker(pytestconfig: pytest.Config) -> Iterator[Broker]:
    with _broker(pytestconfig, secure=False) as made:
        yield made


@pytest.fixture(scope="session")
def _penstock_session_secure_broker(pytestconfig: pytest.Config) -> Iterator[Broker]:
    with _broker(pytestconfig, secure=True) as made:
        yield made


@pytest.fixture(scope="session")
def _penstock_session_cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    with _cluster(pytestconfig, secure=False) as made:
        yield made


@pytest.fixture(scope="session")
def _penstock_session_secure_cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    with _cluster(pytestconfig, secure=True) as made:
        yield made


@contextmanager
def _broker(config: pytest.Config, secure: bool) -> Iterator[Broker]:
    from penstock import testing

    with testing.broker(secure=secure) as made:
        config.stash[_READY].append(made.ready_in_s)
        yield made


@contextmanager
def _cluster(config: pytest.Config, secure: bool) -> Iterator[Cluster]:
    """As the configuration wants it."""
    from penstock import testing

    nodes = int(config.getini("penstock_cluster_nodes"))
    with testing.cluster(nodes=nodes, seed=config.stash[_SEED], secure=secure) as made:
        config.stash[_READY].append(made.ready_in_s)
        yield made


def _used(request: pytest.FixtureRequest, made: Any) -> Any:
    request.node.stash.setdefault(_USED, []).append(made)
    return made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.when == "call":
        for made in item.stash.get(_USED, []):
            for name, lines in made.logs().items():
                report.sections.append((f"penstock {name}", "\n".join(lines)))
        if item.stash.get(_USED, []):
            report.sections.append(("penstock seed", f"--penstock-seed {item.config.stash[_SEED]}"))
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    ready = config.stash.get(_READY, [])
    if ready:
        terminalreporter.write_line(
            f"penstock: {len(ready)} started, ready in {statistics.median(ready):.2f} s (median), "
            f"{max(ready):.2f} s (longest); seed {config.stash[_SEED]}"
        )
