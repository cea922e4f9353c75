"""An attack and what it costs: quiet, under attack, quiet again, in one run, so that ratios are of one machine."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import re
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from penstock.local import ports
from penstock.local.cluster import LocalCluster
from penstock.local.plan import CONTROLLER, GATEWAY, NODE, SHORT_NAMES, gateway_ports
from penstock.local.processes import ProcessState
from penstock.local.secure import DOMAIN, admin_file, directory_of
from security import attacks
from security.role_ports import RolePorts, client_certificate
from security.target import (
    BALANCER,
    CERTIFIED,
    MEMBERS_SMALL,
    NARROW_TOPIC,
    NO_RIGHTS,
    SERVER_NAME,
    STRANGER,
    WIDE_PARTITIONS,
    WIDE_TOPIC,
    Entry,
    Outcome,
    Target,
)
from support.cluster import running_cluster, wait_until_ready
from support.kafka import client_config, commit, produce
from support.listener_ports import choose_listener_ports
from support.stock_clients import lines_of
from support.waiting import wait_for

SAMPLE_S = 0.1
_NICE = 19
TOPICS_S = 60.0
DOORS = (
    *((CONTROLLER, use) for use in ("grpc", "raft", "http")),
    *((NODE, use) for use in ("grpc", "http")),
    *((GATEWAY, use) for use in ("grpc", "http")),
)
"""What every local cluster has beside its Kafka listeners."""
_FENCED = re.compile(rb"^penstock_controller_nodes_fenced (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Cost:
    """One attack's row."""

    attack: str
    text: str
    refused: bool
    said: str
    lag_ms: float
    """The longest that a loop of gateway or node was busy with others."""
    memory_mb: float
    """The most that one process grew."""
    lost: int
    """Processes that died, and the most nodes fenced at a time."""
    p99_ratio: float
    """Honest 1 KiB produces: p99 under attack by p99 when quiet."""
    large_ms: float
    """The slowest honest produce of 128 KiB under attack."""
    failures: int
    """Honest requests and connections that failed under attack."""
    cluster: str = "plain"
    """plain or secure."""
    who: str = "a stranger"
    """As whom: a key of `WHO`."""
    lags_ms: tuple[float, ...] = ()
    """Each, where it was measured more than once: `lag_ms` is their median then."""
    p99_ratios: tuple[float, ...] = ()


WHO = {
    STRANGER: "mallory comes as far as TLS",
    NO_RIGHTS: "mallory has signed in, and no ACL names him",
    CERTIFIED: "mallory shows a certificate that the cluster's CA gave him as a client, at listeners and role ports",
}
MALLORY = "mallory"


def names(*, secure: bool = False) -> list[str]:
    """Every attack that such a cluster can be attacked by."""
    found = sorted(m.name for m in pkgutil.iter_modules(attacks.__path__))
    return [name for name in found if secure or not hasattr(load(name), "NEEDS")]


def runs(*, secure: bool) -> list[tuple[str, str]]:
    """Attacks, and as whom each is made."""
    found: list[tuple[str, str]] = []
    for name in names(secure=secure):
        if secure and hasattr(load(name), "IS_NO_ATTACK"):
            continue
        who = getattr(load(name), "BY", (STRANGER,) if hasattr(load(name), "NEEDS") else tuple(WHO))
        found.extend((name, each) for each in who if secure or each == STRANGER)
    return found


def load(name: str) -> ModuleType:
    """The module of an attack."""
    return importlib.import_module(f"security.attacks.{name}")


@contextlib.contextmanager
def attackable(
    directory: Path, *, small: bool = False, secure: bool = False
) -> Iterator[tuple[LocalCluster, Target]]:
    """A cluster with what attacks and honest clients need; the target is a stranger's."""
    base = ports.choose_base()
    further = _Further(*choose_listener_ports(3, base))
    settings = _listeners(directory, gateway_ports(base, 1), further, secure=secure)
    if small:
        settings[NODE]["group_members_per_principal_max"] = str(MEMBERS_SMALL)
    with running_cluster(
        directory, controllers=1, nodes=3, secure=secure, settings=settings, port=base
    ) as cluster:
        admin = AdminClient(client_config(cluster.bootstrap, **honest_config(cluster)))
        topics = [NewTopic(NARROW_TOPIC, 1, 3), NewTopic(WIDE_TOPIC, WIDE_PARTITIONS, 3)]
        for future in admin.create_topics(topics).values():
            future.result(TOPICS_S)
        produce(cluster.bootstrap, NARROW_TOPIC, 10, **honest_config(cluster))
        _commit_once(cluster)
        yield cluster, _target(cluster, small, directory, further)


def _commit_once(cluster: LocalCluster) -> None:
    """As in any cluster at work there are groups: their topic is not first made under an attack."""
    config = client_config(cluster.bootstrap, **{"group.id": "honest"}, **honest_config(cluster))
    consumer = Consumer(config)
    try:
        commit(consumer, [TopicPartition(NARROW_TOPIC, 0, 0)])
    finally:
        consumer.close()
    # All coordinators have read their logs: until then they refuse groups for another reason than an attack's.
    admin = AdminClient(client_config(cluster.bootstrap, **honest_config(cluster)))
    wait_for(lambda: not admin.list_consumer_groups().result(TOPICS_S).errors, "all coordinators serve")


def honest_config(cluster: LocalCluster) -> dict[str, Any]:
    """What librdkafka needs to come in as whoever may do everything."""
    found = lines_of(admin_file(cluster.directory)) if cluster.state.secure else {}
    return {name: value for name, value in found.items() if name != "bootstrap.servers"}


class _Further(NamedTuple):
    """Ports of the gateway's listeners that `local up` does not have."""

    balanced: int
    certified: int
    certified_direct: int


def _listeners(
    directory: Path, planned: Mapping[str, int], further: _Further, *, secure: bool
) -> dict[str, dict[str, str]]:
    """What `local up` gives, beside it one for a balancer, and where it is secure one for clients' certificates."""
    gateway: list[dict[str, Any]] = [
        {"name": "PROXY", "bind": f"127.0.0.1:{planned['kafka']}"},
        {"name": "DIRECT", "bind": f"127.0.0.1:{planned['direct']}", "mode": "direct"},
        {
            "name": "BALANCED",
            "bind": f"127.0.0.1:{further.balanced}",
            "proxy_protocol": True,
            "proxy_from": [f"{BALANCER}/32"],
        },
    ]
    if not secure:
        return {GATEWAY: {"listeners": json.dumps(gateway)}, NODE: {}}
    made = directory_of(directory)
    leaf = made / f"{GATEWAY}-gateway-1"
    tls = {"cert": str(leaf / "cert.pem"), "key": str(leaf / "key.pem")}
    shows = {**tls, "client_ca": str(made / "ca.pem"), "client_auth": "required"}
    for each in gateway:
        each |= {"security": "SASL_SSL", "tls": tls}
    certified = {
        "name": "CERTIFIED",
        "bind": f"127.0.0.1:{further.certified}",
        "security": "SSL",
        "tls": shows,
    }
    direct = {"name": "CERTIFIED_DIRECT", "mode": "direct", "security": "SSL", "tls": shows}
    gateway += [certified, {**direct, "bind": f"127.0.0.1:{further.certified_direct}"}]
    for each in gateway:
        # librdkafka needs a name (decision 0007).
        each["advertised"] = f"{SERVER_NAME}:{each['bind'].rpartition(':')[2]}"
    # One text for all nodes: their ports are free ones, which metadata tell.
    node = [
        {"name": "DIRECT", "mode": "direct", "bind": "127.0.0.1:0", "security": "SASL_SSL", "tls": tls},
        {**direct, "bind": "127.0.0.1:0"},
    ]
    return {GATEWAY: {"listeners": json.dumps(gateway)}, NODE: {"listeners": json.dumps(node)}}


def _target(cluster: LocalCluster, small: bool, directory: Path, further: _Further) -> Target:
    state = cluster.state
    host = cluster.bootstrap.rpartition(":")[0]

    def at(role: str, use: str) -> list[str]:
        return [f"{host}:{m.ports[use]}" for m in state.members if m.role == role]

    doors = {f"{SHORT_NAMES[role]} {use}": at(role, use)[0] for role, use in DOORS}
    doors["balanced"] = f"{host}:{further.balanced}"
    gateway, (http,) = cluster.bootstrap, at(GATEWAY, "http")
    if not state.secure:
        return Target(gateway, tuple(at(NODE, "direct")), http, small, doors=doors)
    ca_directory = directory_of(cluster.directory)
    cert, key = client_certificate(ca_directory, directory.parent)
    ca = ca_directory / "ca.pem"
    grpc = at(CONTROLLER, "grpc")[0], at(NODE, "grpc")[0]
    roles = RolePorts(*grpc, at(CONTROLLER, "raft")[0], DOMAIN, ca, cert, key)
    shown = {
        "security.protocol": "SSL",
        "ssl.ca.location": str(ca),
        "ssl.certificate.location": str(cert),
        "ssl.key.location": str(key),
    }
    certified = _nodes(f"{host}:{further.certified_direct}", shown)
    return Target(
        *(
            gateway,
            _nodes(at(GATEWAY, "direct")[0], honest_config(cluster)),
            http,
            small,
            Entry(str(ca)),
            roles,
        ),
        doors=doors,
        certified=(f"{host}:{further.certified}", *certified),
    )


def _nodes(direct: str, config: dict[str, Any]) -> tuple[str, ...]:
    """The nodes, as a direct listener names them."""
    brokers = AdminClient(client_config(direct, **config)).list_topics(timeout=TOPICS_S).brokers
    return tuple(f"{broker.host}:{broker.port}" for broker in brokers.values())


def as_user_without_rights(cluster: LocalCluster, target: Target) -> Target:
    """The same target for somebody who may sign in."""
    password = os.urandom(12).hex()
    admin = AdminClient(client_config(cluster.bootstrap, **honest_config(cluster)))
    change = UserScramCredentialUpsertion(
        MALLORY, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4_096), password.encode()
    )
    for future in admin.alter_user_scram_credentials([change]).values():
        future.result(TOPICS_S)
    return replace(target, entry=Entry(target.entry.ca, MALLORY, password))


def as_whom(who: str, cluster: LocalCluster, target: Target) -> Target:
    """A stranger's target as one of `WHO` has it."""
    if who == NO_RIGHTS:
        return as_user_without_rights(cluster, target)
    return target.by_certificate() if who == CERTIFIED else target


class _Watch:
    """Memory of all processes, fenced nodes and dead processes, every tenth of a second."""

    def __init__(self, cluster: LocalCluster) -> None:
        state = cluster.state
        self._cluster = cluster
        self._pids = {p.name: p.pid or 0 for p in state.processes}
        # In plain in a secure cluster too.
        self._controllers = [
            f"http://127.0.0.1:{m.ports['http']}/metrics" for m in state.members if m.role == CONTROLLER
        ]
        self._counted = 0
        self._before = {name: _rss_bytes(pid) for name, pid in self._pids.items()}
        self.grown_bytes = 0
        self.fenced = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        # Else nobody would have seen a node fenced.
        assert self._counted, f"no controller told how many nodes are fenced: {self._controllers}"

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            for name, pid in self._pids.items():
                self.grown_bytes = max(self.grown_bytes, _rss_bytes(pid) - self._before[name])
            for url in self._controllers:
                with (
                    contextlib.suppress(OSError),
                    urllib.request.urlopen(url, timeout=2) as response,
                ):
                    found = _FENCED.search(response.read())
                    if found:
                        self._counted += 1
                        self.fenced = max(self.fenced, int(float(found[1])))

    def dead(self) -> int:
        """Processes that do not run any more."""
        return sum(p.state is not ProcessState.RUNNING for p in self._cluster.status().processes)


def _rss_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    return 0


@contextlib.contextmanager
def witnessed(cluster: LocalCluster, target: Target, seconds: float) -> Iterator[dict[str, Any]]:
    """Honest clients at work for at least `seconds`; what they saw is there at the end."""
    command = [sys.executable, "-m", "security.witness", target.gateway, ",".join(target.nodes)]
    config = honest_config(cluster)
    entry = [target.entry.ca, config["sasl.username"]] if target.entry.ca else []
    child = subprocess.Popen(
        [*command, NARROW_TOPIC, str(seconds), *entry],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    seen: dict[str, Any] = {}
    assert child.stdin is not None and child.stdout is not None
    try:
        if entry:
            child.stdin.write(config["sasl.password"] + "\n")
            child.stdin.flush()
        assert child.stdout.readline() == "begun\n"
        yield seen
        child.stdin.close()
        seen.update(json.loads(child.stdout.readline()))
    finally:
        child.stdin.close()
        child.stdout.close()
        if child.poll() is None and not seen:
            child.terminate()
        child.wait()


@contextlib.contextmanager
def from_afar() -> Iterator[Callable[[str, Target], Outcome]]:
    """What makes an attack in a process of its own that gives way to everybody else's; it is there from the beginning.

    An attacker has a machine of his own. Here he has to live on ours; at the usual priority, and while his interpreter
    starts, the table would tell what his own work takes from honest clients, which no broker can do anything about.
    """
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=os.nice, initargs=(_NICE,)) as pool:
        pool.submit(_loaded).result()
        yield lambda name, target: pool.submit(made, name, target).result()


def _loaded() -> None:
    """All that is imported for any attack."""
    for name in names(secure=True):
        load(name)


def made(name: str, target: Target) -> Outcome:
    """Make an attack; one whose connection is ended in the middle was refused."""
    try:
        outcome: Outcome = load(name).run(target)
    except ConnectionError as error:
        outcome = Outcome(True, f"closed ({type(error).__name__})")
    except ssl.SSLError as error:
        outcome = Outcome(True, f"closed ({error.reason})")
    return outcome


def cost_of(name: str, who: str, cluster: LocalCluster, target: Target, seconds: float) -> Cost:
    """Do the attack for about `seconds`."""
    attackers = as_whom(who, cluster, target)
    with witnessed(cluster, target, seconds) as quiet:
        pass
    with from_afar() as attack, _Watch(cluster) as watch:
        with witnessed(cluster, target, seconds) as busy:
            time.sleep(0.5)
            outcome = attack(name, attackers)
        dead = watch.dead()
    wait_until_ready(cluster)
    time.sleep(1)
    with witnessed(cluster, target, seconds) as after:
        pass
    quiet_ms = (quiet["small_p99_ms"] + after["small_p99_ms"]) / 2
    return Cost(
        attack=name,
        text=load(name).TEXT,
        refused=outcome.refused,
        said=outcome.said,
        lag_ms=busy["lag_ms"],
        memory_mb=watch.grown_bytes / 1e6,
        lost=dead + watch.fenced,
        p99_ratio=busy["small_p99_ms"] / quiet_ms,
        large_ms=busy["large_max_ms"],
        failures=sum(busy["failures"].values()),
        who=who,
    )


def as_json(costs: list[Cost]) -> str:
    """A document that `tools/results.py` reads."""
    return json.dumps([asdict(cost) for cost in costs], indent=1)
