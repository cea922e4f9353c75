"""What a local cluster is made of: members, their ports, and their settings files. Pure.

A *member* is one role with an id, a directory and ports; a *process* runs one member,
or all of them (`--single`). Ports that people type follow from `--port` by a fixed rule
(gateway i, from 1: Kafka P+10(i-1), gRPC P+2+10(i-1), direct Kafka P+100+10(i-1),
HTTP 8080+(P-9092)+10(i-1)); all others are free ports chosen once and kept, so that a
member which is started again has the address that its peers know.
"""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import CommandError, ExitCode

HOST = "127.0.0.1"
PORT_DEFAULT = 9092
PORT_MIN = 2100
"""Below it the HTTP ports that go with it would be privileged ones."""
PORT_MAX = 65_000
HTTP_PORT_OFFSET = 8080 - PORT_DEFAULT
GATEWAYS_MAX = 10
"""An eleventh gateway's proxy port would be the first one's direct port."""
NODES_MAX = 100
FORMAT = 1
SETTINGS_FILE = "settings.toml"
OWN_SETTINGS = frozenset(
    {
        *(
            "config",
            "data_dir",
            "slots_dir",
            "grpc_bind",
            "grpc_advertised",
            "http_bind",
            "controllers",
            "listeners",
        ),
        *("controller_id", "raft_bind", "raft_peers", "node_id", "gateway_id", "rack"),
    }
)
"""Settings that follow from the layout: `--set` may not change them."""

CONTROLLER = "controller"
NODE = "storage-node"
GATEWAY = "gateway"
ROLES = (CONTROLLER, NODE, GATEWAY)
LISTENERS = "listeners"
OWN_LISTENER_SETTINGS = frozenset({"name", "bind", "mode", "advertised", "security", "tls"})
"""Settings of each listener that follow from the layout and from `--secure`."""

SECURE_DIRECTORY = "secure"
"""Of a cluster's directory: what `penstock.local.secure` makes."""
SECURE_HOST = "localhost"
"""Under which listeners with TLS are advertised: librdkafka before 2.4 needs a name there (decision 0007)."""
ADMIN = "admin"
FIRST_USERS_FILE = "first-users.json"

SHORT_NAMES = {CONTROLLER: "controller", NODE: "node", GATEWAY: "gateway"}
MODULES = {CONTROLLER: "penstock_controller", NODE: "penstock_storage_node", GATEWAY: "penstock_gateway"}
SINGLE = "single"

INTERNAL_PORTS = {CONTROLLER: ("grpc", "raft", "http"), NODE: ("grpc", "direct", "http"), GATEWAY: ()}


@dataclass(frozen=True)
class ClusterSpec:
    """What `up` was asked for. `settings` are the words of `--set`, role -> key -> value."""

    controllers: int = 3
    nodes: int = 3
    gateways: int = 1
    racks: tuple[str, ...] = ()
    port: int = PORT_DEFAULT
    single: bool = False
    secure: bool = False
    settings: dict[str, dict[str, str]] = field(default_factory=dict)

    def check(self) -> None:
        """Raise a usage error that names the option unless a cluster can be made of this."""
        if self.controllers not in (1, 3, 5):
            raise _usage(f"--controllers {self.controllers}: a quorum has 1, 3 or 5 controllers")
        if not 1 <= self.nodes <= NODES_MAX:
            raise _usage(f"--nodes {self.nodes}: choose from 1 to {NODES_MAX}")
        if not 1 <= self.gateways <= GATEWAYS_MAX:
            raise _usage(f"--gateways {self.gateways}: choose from 1 to {GATEWAYS_MAX}")
        if not PORT_MIN <= self.port <= PORT_MAX:
            raise _usage(f"--port {self.port}: choose from {PORT_MIN} to {PORT_MAX}")
        if self.racks:
            # The roles bring it along, and without them nothing is started.
            from penstock_core.racks import check_rack

            for rack in self.racks:
                try:
                    check_rack(rack)
                except ValueError as error:
                    raise _usage(f"--racks: {error}") from None


@dataclass
class Member:
    """One role with its id; `ports` by use: grpc, http, raft, direct, kafka."""

    name: str
    role: str
    id: int
    rack: str
    ports: dict[str, int]


@dataclass
class ProcessRecord:
    """One process: the members it runs and, once started, the pid and who that pid was.

    `identity` tells this process from a later one with the same pid; see processes.py.
    """

    name: str
    role: str
    id: int
    members: list[str]
    pid: int | None = None
    identity: str | None = None


@dataclass
class ClusterState:
    """All that is kept in DIR/cluster.json. Durable; written whole and renamed into place."""

    port: int
    single: bool
    racks: list[str]
    settings: dict[str, dict[str, str]]
    members: list[Member]
    processes: list[ProcessRecord]
    secure: bool = False

    def to_json(self) -> str:
        told = {"format": FORMAT, **asdict(self)}
        if not self.secure:
            # Builds of before do not know the word.
            del told["secure"]
        return json.dumps(told, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, source: Path) -> ClusterState:
        """Read cluster.json; a damaged one or a newer format is an error that names the file."""
        try:
            data = json.loads(text)
            form = data.pop("format")
            if form != FORMAT:
                raise CommandError(
                    f"{source} has format {form}, this build knows {FORMAT}: use the Penstock that made it, "
                    "or another --dir"
                )
            members = [Member(**member) for member in data.pop("members")]
            processes = [ProcessRecord(**process) for process in data.pop("processes")]
            return cls(members=members, processes=processes, **data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CommandError(
                f"{source} is damaged ({error}): stop its processes, remove it, or use another --dir"
            ) from error

    def of_role(self, role: str) -> list[Member]:
        return [member for member in self.members if member.role == role]

    def member(self, name: str) -> Member:
        return next(member for member in self.members if member.name == name)

    def process(self, name: str) -> ProcessRecord:
        """The process of that name; raises a usage error that lists the names there are."""
        return self.processes_named([name])[0]

    def processes_named(self, names: Sequence[str]) -> list[ProcessRecord]:
        """The processes of these names, each once; raises a usage error that lists the names there are."""
        known = {process.name: process for process in self.processes}
        unknown = " or ".join(repr(name) for name in dict.fromkeys(names) if name not in known)
        if unknown:
            raise CommandError(
                f"no process is named {unknown}; there are: {', '.join(known)}", ExitCode.USAGE
            )
        return [known[name] for name in dict.fromkeys(names)]


def gateway_ports(base: int, gateway_id: int) -> dict[str, int]:
    """The ports of gateway `gateway_id` (from 1) of a cluster at port `base`."""
    port = base + 10 * (gateway_id - 1)
    return {"kafka": port, "grpc": port + 2, "direct": port + 100, "http": port + HTTP_PORT_OFFSET}


def plan_cluster(spec: ClusterSpec, choose_ports: Callable[[int], list[int]]) -> ClusterState:
    """Lay out a new cluster. `choose_ports(count)` gives that many free ports."""
    spec.check()
    state = ClusterState(spec.port, spec.single, list(spec.racks), dict(spec.settings), [], [], spec.secure)
    counts = {CONTROLLER: spec.controllers, NODE: spec.nodes, GATEWAY: spec.gateways}
    needed = sum(len(INTERNAL_PORTS[role]) * count for role, count in counts.items())
    free = iter(choose_ports(needed))
    for role in ROLES:
        for _ in range(counts[role]):
            plan_member(state, role, lambda count: [next(free) for _ in range(count)])
    if spec.single:
        names = [member.name for member in state.members]
        state.processes = [ProcessRecord(SINGLE, SINGLE, 1, names)]
    return state


def plan_member(state: ClusterState, role: str, choose_ports: Callable[[int], list[int]]) -> Member:
    """Add the next member of a role, with a process of its own, to `state`; returns it."""
    member_id = max((member.id for member in state.of_role(role)), default=0) + 1
    if role == GATEWAY:
        if member_id > GATEWAYS_MAX:
            raise _usage(f"a local cluster has at most {GATEWAYS_MAX} gateways")
        ports = gateway_ports(state.port, member_id)
    else:
        uses = INTERNAL_PORTS[role]
        ports = dict(zip(uses, choose_ports(len(uses)), strict=True))
    rack = state.racks[(member_id - 1) % len(state.racks)] if state.racks and role == NODE else ""
    member = Member(f"{SHORT_NAMES[role]}-{member_id}", role, member_id, rack, ports)
    state.members.append(member)
    state.processes.append(ProcessRecord(member.name, role, member_id, [member.name]))
    return member


def reserved_ports(port: int) -> set[int]:
    """Ports that a gateway of this cluster may come to need: never handed out as free ones."""
    return {value for i in range(1, GATEWAYS_MAX + 1) for value in gateway_ports(port, i).values()}


def member_settings(state: ClusterState, member: Member, directory: Path) -> dict[str, Any]:
    """The member's settings file, as names and values."""
    controllers = state.of_role(CONTROLLER)
    ports = member.ports
    settings: dict[str, Any] = {
        "data_dir": str(directory / member.name / "data"),
        "grpc_bind": f"{HOST}:{ports['grpc']}",
        "http_bind": f"{HOST}:{ports['http']}",
        "controllers": [f"{c.id}@{HOST}:{c.ports['grpc']}" for c in controllers],
    }
    if member.rack:
        settings["rack"] = member.rack
    if member.role == CONTROLLER:
        settings["controller_id"] = member.id
        settings["raft_bind"] = f"{HOST}:{ports['raft']}"
        settings["raft_peers"] = [f"{c.id}@{HOST}:{c.ports['raft']}" for c in controllers]
    elif member.role == NODE:
        settings["node_id"] = member.id
        settings["listeners"] = [_listener("DIRECT", ports["direct"], "direct")]
    else:
        settings["gateway_id"] = member.name
        settings["listeners"] = [
            _listener("PROXY", ports["kafka"], "proxy"),
            _listener("DIRECT", ports["direct"], "direct"),
        ]
    if state.secure:
        _secure(settings, member, directory)
    for key, value in state.settings.get(member.role, {}).items():
        _set(settings, key, _parsed(value))
    return settings


def certificate_name(member: Member) -> str:
    """The name in a member's certificate."""
    return {CONTROLLER: str(member.id), NODE: f"node-{member.id}"}.get(member.role, member.name)


def _secure(settings: dict[str, Any], member: Member, directory: Path) -> None:
    """TLS on the member's ports, users at its listeners, and the admin who may do everything."""
    made = directory / SECURE_DIRECTORY
    own = made / f"{member.role}-{certificate_name(member)}"
    files = {"cert": str(own / "cert.pem"), "key": str(own / "key.pem")}
    settings["tls"] = {**files, "ca": str(own / "ca.pem")}
    settings["audit_log"] = str(made / f"{member.name}-audit.log")
    if member.role == CONTROLLER:
        settings["bootstrap_users"] = str(made / FIRST_USERS_FILE)
        return
    settings |= {"authorizer": "acl", "super_users": [f"User:{ADMIN}"]}
    door = {"security": "SASL_SSL", "tls": files}
    settings["http_door"] = door
    if member.role == GATEWAY:
        settings["grpc_door"] = door
    for listener in settings["listeners"]:
        port = listener["bind"].rpartition(":")[2]
        listener.update(advertised=f"{SECURE_HOST}:{port}", security="SASL_SSL", tls=files)


def _set(settings: dict[str, Any], key: str, value: Any) -> None:
    """Set a setting; `listeners.KEY` sets KEY of each listener."""
    table, _, of_listeners = key.partition(".")
    if of_listeners:
        for listener in settings[table]:
            listener[of_listeners] = value
    else:
        settings[key] = value


def to_toml(settings: Mapping[str, Any]) -> str:
    """A settings file's text: scalars and lists first, then lists of tables."""
    lines = []
    tables = []
    for key, value in settings.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            for table in value:
                tables += ["", f"[[{key}]]"]
                tables += [f"{name} = {_toml_value(entry)}" for name, entry in table.items()]
        else:
            lines.append(f"{key} = {_toml_value(value)}")
    return "\n".join(lines + tables) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml_value(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


def module_and_arguments(state: ClusterState, process: ProcessRecord, directory: Path) -> list[str]:
    """What the process runs: a Python module and its arguments."""
    if process.role == SINGLE:
        roles = [(state.member(name).role, name) for name in process.members]
        return [
            "penstock.local.single",
            *(f"{role}={directory / name / SETTINGS_FILE}" for role, name in roles),
        ]
    return [MODULES[process.role], "--config", str(directory / process.name / SETTINGS_FILE)]


def addresses(state: ClusterState) -> dict[str, str]:
    """The addresses that clients are given; several gateways make comma-separated lists."""
    gateways = state.of_role(GATEWAY)

    host = SECURE_HOST if state.secure else HOST

    def listed(use: str, scheme: str = "") -> str:
        return ",".join(f"{scheme}{host}:{gateway.ports[use]}" for gateway in gateways)

    return {
        "bootstrap": listed("kafka"),
        "direct_bootstrap": listed("direct"),
        "gateway": listed("grpc"),
        "http": listed("http", "https://" if state.secure else "http://"),
    }


def parse_assignments(
    words: Sequence[str], fields_of: Callable[[], Mapping[str, set[str]]]
) -> dict[str, dict[str, str]]:
    """Turn `--set` words into role -> key -> value.

    `key=value` goes to each role that has such a setting, `node.key=value` to one role. `listeners.key=value`
    sets key of each Kafka listener.
    `fields_of` tells which role has which settings (asked only when there are words).
    """
    settings: dict[str, dict[str, str]] = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise _usage(f"--set {shlex.quote(word)}: write it as key=value or role.key=value")
        prefix, key = _split(name)
        known = fields_of()
        kafka = _kafka_hint(name, known)
        if kafka is not None:
            raise _usage(f"--set {name}: {kafka}")
        roles = [role for role in known if prefix in ("", role, SHORT_NAMES[role])]
        if not roles:
            raise _usage(f"--set {name}: {prefix!r} is no role; there are controller, node and gateway")
        if key == LISTENERS:
            raise _usage(
                f"--set {name}: the local cluster chooses its listeners itself; --set {LISTENERS}.KEY=VALUE sets "
                "KEY of each of them, --secure makes them SASL_SSL"
            )
        if key.rpartition(".")[0] == LISTENERS and key.rpartition(".")[2] in OWN_LISTENER_SETTINGS:
            raise _usage(f"--set {name}: the local cluster chooses it itself; see --port and --secure")
        if key in OWN_SETTINGS:
            raise _usage(f"--set {name}: the local cluster chooses it itself; see --port and --dir")
        takers = [role for role in roles if key in known[role]]
        if not takers:
            fields = {field for role in roles for field in known[role]} - OWN_SETTINGS
            close = difflib.get_close_matches(key, fields, n=3, cutoff=0.5) or sorted(fields)
            raise _usage(f"--set {name}: no such setting; did you mean {', '.join(close)}?")
        for role in takers:
            settings.setdefault(role, {})[key] = value
    return settings


def _split(name: str) -> tuple[str, str]:
    """A role or "", and the key, which for settings of listeners has `listeners.` before it."""
    prefix, _, key = name.rpartition(".")
    key = key.replace("-", "_")
    role, _, table = f".{prefix}".rpartition(".")
    return (role[1:], f"{LISTENERS}.{key}") if table == LISTENERS else (prefix, key)


def _kafka_hint(name: str, known: Mapping[str, set[str]]) -> str | None:
    """What to write in the place of a broker configuration of Kafka's, with or without a role before it."""
    # It comes with the roles, which `--set` needs; a client without them does without.
    from penstock_runtime.kafka_names import hint

    prefix, _, rest = name.partition(".")
    roles = [role for role in known if prefix in (role, SHORT_NAMES[role])]
    chosen = []

    def spell(setting: str) -> str:
        if setting not in OWN_SETTINGS:
            return f"--set {setting}=VALUE"
        chosen.append(setting)
        return setting

    for word, takers in ((name, list(known)), (rest, roles)):
        fields = {field for role in takers for field in known[role]}
        if not takers or word.replace("-", "_") in fields:
            continue
        found = hint(word, fields, spell)
        if found is not None:
            return f"{found}; the local cluster chooses it itself, see --port and --dir" if chosen else found
    return None


def _listener(name: str, port: int, mode: str) -> dict[str, Any]:
    return {"name": name, "bind": f"{HOST}:{port}", "mode": mode}


def _parsed(value: str) -> Any:
    """A `--set` value as TOML can say it: JSON where it is JSON, else the word itself."""
    try:
        parsed = json.loads(value)
    except ValueError:
        return value
    return value if parsed is None or isinstance(parsed, dict) else parsed


def _usage(message: str) -> CommandError:
    return CommandError(message, ExitCode.USAGE)
