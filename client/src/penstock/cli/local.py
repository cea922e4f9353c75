"""`penstock local`: a thin shell over penstock.local.cluster.LocalCluster."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any

import click

from penstock.cli.output import note, print_facts, print_json, print_table, spinner
from penstock.errors import CommandError, ExitCode
from penstock.local import plan
from penstock.local.cluster import LocalCluster
from penstock.local.roles import role_fields
from penstock.local.status import ClusterStatus

DIRECTORY_DEFAULT = ".penstock"
SIGNALS = {name: getattr(signal, f"SIG{name}") for name in ("KILL", "TERM", "STOP", "CONT")}

directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=DIRECTORY_DEFAULT,
    envvar="PENSTOCK_LOCAL_DIR",
    show_default=True,
    help="Where the cluster lives: data, settings, logs, cluster.json. Also PENSTOCK_LOCAL_DIR.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
names_argument = click.argument("names", metavar="[NAME]...", nargs=-1)


@click.group("local")
def COMMAND() -> None:  # noqa: N802 (the name that cli.main looks for)
    """A whole cluster on this machine: start, break, mend and stop it.

    Real processes on 127.0.0.1, in the background, each with a directory and a log of its
    own. They are named controller-1, node-1, gateway-1 and so on.

    \b
    Examples:
      penstock local up
      penstock local kill node-2
      penstock local start node-2
      penstock local down --wipe
    """


@COMMAND.command()
@click.option("--controllers", type=int, help="1, 3 or 5.  [default: 3]")
@click.option("--nodes", type=int, help="Storage nodes.  [default: 3]")
@click.option("--gateways", type=int, help="Gateways; gateway i listens at PORT+10(i-1).  [default: 1]")
@click.option(
    "--racks",
    help="Comma-separated, such as a,b,c or a/h1,a/h1,b/h2; storage nodes are dealt out to them in turn.",
)
@click.option("--port", type=int, help="Kafka port of the first gateway; its others follow.  [default: 9092]")
@click.option(
    "--set",
    "words",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting, for each role that has it; ROLE.KEY=VALUE for one role (controller, node, gateway); "
    "listeners.KEY=VALUE for each Kafka listener.",
)
@click.option(
    "--single", is_flag=True, default=None, help="All roles in one process, one of each: for development."
)
@click.option(
    "--secure",
    is_flag=True,
    default=None,
    help="TLS on every port, clients sign in, ACLs that allow nothing: made whole, with an admin.",
)
@directory_option
@json_option
def up(directory: Path, as_json: bool, words: tuple[str, ...], **given: Any) -> None:
    """Start a cluster, or the stopped one in DIR again; returns when a record can be produced.

    \b
    Ports of gateway i (from 1), with the default --port:
      Kafka, everything through the gateway   9092 + 10(i-1)
      Kafka, direct to the storage nodes      9192 + 10(i-1)
      gRPC, native clients and Spark          9094 + 10(i-1)
      HTTP, health and metrics                8080 + 10(i-1)

    \b
    Examples:
      penstock local up
      penstock local up --gateways 2 --racks a,b,c
      penstock local up --nodes 8 --racks a/h1,a/h1,a/h2,a/h2,b/h3,b/h3,c/h4,c/h4
      penstock local up --port 19092 --dir /tmp/second      beside the first
      penstock local up --set log_level=DEBUG --set controller.node_session_timeout_ms=1000
      penstock local up --single --json
      penstock local up --secure
      penstock local up --secure --set listeners.max_reauth_ms=3600000

    
    With --secure DIR/secure/admin.properties has what a client of librdkafka needs to come in as the admin
    (kcat -F FILE), admin-java.properties what Java's need. Commands in this directory find it by themselves,
    elsewhere they take --client-config FILE. DIR/secure is a CA of `penstock cert`.
    """
    if given["racks"] is not None:
        given["racks"] = tuple(rack.strip() for rack in given["racks"].split(",") if rack.strip())
    asked = {name: value for name, value in given.items() if value is not None}
    settings = plan.parse_assignments(words, role_fields)
    with spinner("starting") as progress:
        cluster = LocalCluster(directory, progress)
        different = cluster.differences(asked)
        if different:
            raise CommandError(
                f"the cluster in {cluster.directory} is another one ({'; '.join(different)}): leave out the "
                "option, choose another --dir, or remove that one with `penstock local down --wipe`",
                ExitCode.USAGE,
            )
        if asked.get("single"):
            asked = {"controllers": 1, "nodes": 1, "gateways": 1, **asked}
        begun = time.monotonic()
        started = cluster.up(plan.ClusterSpec(settings=settings, **asked))
        took_s = time.monotonic() - begun
    status = cluster.status()
    if as_json:
        print_json(status.to_json())
        return
    _show(status)
    if cluster.client_file is not None:
        note(f"clients come in as the admin with {cluster.client_file}")
    dead = [row.name for row in status.processes if row.pid is None]
    if started:
        note(f"ready in {took_s:.1f} s")
    else:
        note("it was running already" + (" (settings given now are not used)" if settings else ""))
    if dead:
        note(f"dead: {', '.join(dead)}; bring them back with `penstock local start --all`")


@COMMAND.command()
@directory_option
@json_option
def status(directory: Path, as_json: bool) -> None:
    """Addresses, and the state of each process: running, starting, stopped or dead.

    \b
    Examples:
      penstock local status
      penstock local status --json | jq -r .bootstrap
    """
    found = LocalCluster(directory).status()
    if as_json:
        print_json(found.to_json())
    else:
        _show(found)


@COMMAND.command()
@names_argument
@click.option("--all", "everything", is_flag=True, help="Every process that lives.")
@click.option(
    "--signal",
    "signal_name",
    type=click.Choice(list(SIGNALS), case_sensitive=False),
    default="KILL",
    show_default=True,
    help="KILL: at once; TERM: in order; STOP: frozen until CONT.",
)
@directory_option
def kill(names: tuple[str, ...], everything: bool, signal_name: str, directory: Path) -> None:
    """Send a signal to processes, side by side; after KILL or TERM, wait until they are gone.

    What was killed stays dead until `penstock local start NAME`.

    \b
    Examples:
      penstock local kill node-2
      penstock local kill gateway-1 node-1 --signal TERM
      penstock local kill controller-3 --signal STOP
      penstock local kill --all
    """
    _check_names(names, everything)
    with spinner(f"{signal_name} {', '.join(names) or 'all'}") as progress:
        cluster = LocalCluster(directory, progress)
        pids = cluster.kill_several(None if everything else names, SIGNALS[signal_name.upper()])
    for name, pid in pids.items():
        note(f"{name} (process {pid}): SIG{signal_name.upper()} sent")
    if not pids:
        note("nothing was running")


@COMMAND.command()
@names_argument
@click.option("--all", "everything", is_flag=True, help="Every process that is dead or stopped.")
@directory_option
def start(names: tuple[str, ...], everything: bool, directory: Path) -> None:
    """Start dead processes again, side by side, with their data and ports; returns when they are ready.

    \b
    Examples:
      penstock local start node-2
      penstock local start controller-1 controller-2
      penstock local start --all
    """
    _check_names(names, everything)
    with spinner(f"starting {', '.join(names) or 'all'}") as progress:
        cluster = LocalCluster(directory, progress)
        if everything:
            found, notes = cluster.start_all()
        else:
            found, notes = list(names), cluster.start(*names)
    for line in notes or [f"{', '.join(found)}: ready" if found else "every process is running already"]:
        note(line)


@COMMAND.command()
@click.argument("role", type=click.Choice(["node", "gateway"]))
@directory_option
def add(role: str, directory: Path) -> None:
    """Add one more storage node or gateway and start it; prints its name.

    \b
    Examples:
      penstock local add node
      penstock local add gateway
    """
    with spinner(f"adding a {role}") as progress:
        name = LocalCluster(directory, progress).add(plan.NODE if role == "node" else plan.GATEWAY)
    click.echo(name)


@COMMAND.command()
@click.argument("name")
@click.option("--follow", "-f", is_flag=True, help="Go on as the log grows, until Ctrl-C.")
@click.option("--lines", "-n", type=click.IntRange(min=0), help="Only the last N lines.")
@directory_option
def logs(name: str, follow: bool, lines: int | None, directory: Path) -> None:
    """Print the log of a process, dead or alive.

    \b
    Examples:
      penstock local logs node-1
      penstock local logs gateway-1 -n 20 --follow
    """
    file = LocalCluster(directory).log_file(name)
    if not file.exists():
        raise CommandError(f"{name} has no log yet: it was never started")
    with file.open("rb") as source:
        if lines is not None:
            source.seek(_offset_of_last_lines(file, lines))
        while True:
            while part := source.read(1 << 16):
                sys.stdout.buffer.write(part)
            sys.stdout.buffer.flush()
            if not follow:
                return
            time.sleep(0.1)


@COMMAND.command()
@click.option("--wipe", is_flag=True, help="Remove the data, settings and logs too.")
@directory_option
def down(wipe: bool, directory: Path) -> None:
    """Stop every process, in order; the data stays for the next `up` unless --wipe is given.

    Each gets SIGTERM and a bounded time to finish its work, then SIGKILL.

    \b
    Examples:
      penstock local down
      penstock local down --wipe
    """
    with spinner("stopping") as progress:
        cluster = LocalCluster(directory, progress)
        begun = time.monotonic()
        names = cluster.down(wipe=wipe, reaped=True)
    took_s = time.monotonic() - begun
    note(f"stopped {len(names)} processes in {took_s:.1f} s" if names else "nothing was running")
    if wipe:
        note(f"removed {cluster.directory}")


def _check_names(names: tuple[str, ...], everything: bool) -> None:
    if everything == bool(names):
        raise CommandError(
            "say which processes: NAME..., or --all (see `penstock local status`)", ExitCode.USAGE
        )


def _show(status: ClusterStatus) -> None:
    """Addresses and processes, for people."""
    labels = {
        "bootstrap": "Kafka, by gateway",
        "direct_bootstrap": "Kafka, direct",
        "gateway": "gRPC",
        "http": "HTTP",
    }
    print_facts(
        [*((labels[name], value) for name, value in status.addresses.items()), ("in", status.directory)]
    )
    click.echo()
    columns = ["name", "role", "id", "pid", "state"]
    rows: list[list[object]] = [[r.name, r.role, r.id, r.pid, str(r.state)] for r in status.processes]
    if any(row.detail for row in status.processes):
        columns.append("remark")
        for row, process in zip(rows, status.processes, strict=True):
            row.append(process.detail)
    print_table(columns, rows)


def _offset_of_last_lines(file: Path, count: int) -> int:
    """File position where the last `count` lines begin."""
    data = file.read_bytes()
    position = len(data)
    for _ in range(count + (not data.endswith(b"\n"))):
        position = data.rfind(b"\n", 0, max(0, position - 1)) + 1
        if position == 0:
            return 0
    return position if count else len(data)
