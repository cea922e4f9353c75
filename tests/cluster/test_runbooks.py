"""Runbooks of docs/operations.md are run as they stand there, one after another on one cluster of real processes.

A stage does to the cluster what the runbook is for, and afterwards looks at what became of it; then every process is
ready, every replica in sync, and at the end every record that was acknowledged is there. A heading with a block that
has no stage is a mistake, and so is an exemption without a block.

A stage finds the cluster as the one before left it; after one that failed the next finds a new cluster, with the nodes
that it needs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.cli.main import run as run_penstock
from penstock.local.cluster import LocalCluster
from penstock.local.processes import ProcessState
from support.cluster import running_cluster
from support.kafka import (
    Ledger,
    check_nothing_lost,
    client_config,
    commit,
    create_topic,
    describe,
    produce,
    read_all,
)
from support.waiting import wait_for

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
LONG: Final = os.environ.get("PENSTOCK_OPERATIONS_LONG") == "1"
pytestmark = pytest.mark.timeout(2_400 if LONG else 1_200)

TIMEOUT_S: Final = 180.0
BLOCK_TIMEOUT_S: Final = 600.0 if LONG else 240.0
"""Many times what a block takes: one that waits for what does not come fails here, and says what it has said."""
PARTITIONS: Final = 6
RECORDS: Final = 1_500
VALUE_BYTES: Final = 10_000
CONTROLLERS: Final = ("controller-1", "controller-2", "controller-3")


def runbooks(text: str) -> dict[str, list[str]]:
    """Shell blocks by the heading that they stand under."""
    found: dict[str, list[str]] = {}
    for section in re.split(r"^(?=#{2,4} )", text, flags=re.MULTILINE):
        blocks = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        if blocks:
            found[section.partition("\n")[0].lstrip("# ")] = blocks
    return found


RUNBOOKS: Final = runbooks(PAGE.read_text())
EXEMPT: Final = {
    ("Restart every process", 1): "containers and machines; tests/compose restarts by compose",
    ("Hosts and racks", 0): "a cluster of its own at the default ports; test_failure_domains has that shape",
    ("Compose", 0): "containers: tests/compose scales them",
}
"""Blocks that are not run here, and why."""


@dataclass
class Scene:
    """The cluster in the folder that blocks are run in, and what was written to it."""

    folder: Path
    cluster: LocalCluster
    book: Ledger = field(default_factory=Ledger)
    notes: dict[str, Any] = field(default_factory=dict)

    def shell(self, block: str) -> str:
        """Run it as it stands, in a shell that ends at the first command that fails."""
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")} | {"PATH": path}
        # A session of its own, so that what a block has begun ends with it.
        with subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=BLOCK_TIMEOUT_S)
                how = str(process.returncode)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                out, err = process.communicate()
                how = f"not within {BLOCK_TIMEOUT_S:.0f} s"
        assert how == "0", f"{block}\n--- {how}\n{out}\n--- {err}"
        return out

    def said(self, *words: str) -> Any:
        return json.loads(self.shell(f"penstock {' '.join(words)} --json"))

    def data(self, name: str) -> Path:
        return self.cluster.directory / name / "data"

    def node_ids(self) -> list[int]:
        return [node["node_id"] for node in self.said("node", "list")]

    def replicas(self, topic: str = "flights") -> set[int]:
        return {n for p in describe(self.cluster.bootstrap, topic).values() for n in p.replicas}

    def write(self, count: int = 50) -> None:
        """More records, whose acks are remembered."""
        first = len(self.book.values)
        produce(self.cluster.bootstrap, "flights", count, first=first, ledger=self.book)

    def is_ready(self) -> bool:
        """All but nodes that were removed, which are dead."""
        rows = self.cluster.status().processes
        rows = [row for row in rows if not (self.data(row.name) / "retired").exists()]
        return all(row.state is ProcessState.RUNNING and not row.detail for row in rows)

    def is_whole(self) -> bool:
        found = describe(self.cluster.bootstrap, "flights")
        return len(found) == PARTITIONS and all(
            sorted(p.isrs) == sorted(p.replicas) and p.leader > 0 for p in found.values()
        )

    def pids(self, *roles: str) -> dict[str, int | None]:
        return {p.name: p.pid for p in self.cluster.status().processes if p.name.startswith(roles)}

    def add_nodes(self, last_id: int) -> None:
        """Until there is a node of this id."""
        while not self.data(f"node-{last_id}").exists():
            self.shell("penstock local add node")
            wait_for(self.is_ready, "the new node is ready", TIMEOUT_S)

    def have_nodes(self, node_ids: tuple[int, ...]) -> None:
        """As stages before would have left a cluster of three: these nodes and no others, each with replicas."""
        self.add_nodes(node_ids[-1])
        for node_id in range(4, node_ids[-1] + 1):
            what = "add" if node_id in node_ids else "remove"
            self.shell(f"penstock node {what} {node_id} --yes --wait 200")


@contextmanager
def new_scene(folder: Path) -> Iterator[Scene]:
    """A cluster of three nodes with some records; what was acknowledged is looked for if nothing failed."""
    # Metadata streams are cut off on purpose, and a controller that is lost says so as it likes.
    with running_cluster(folder / ".penstock", gateways=2, traces_allowed=True) as cluster:
        made = Scene(folder, cluster)
        create_topic(cluster.bootstrap, "flights", PARTITIONS, 3)
        create_topic(cluster.bootstrap, "orders", 3, 3)
        produce(cluster.bootstrap, "flights", RECORDS, value_bytes=VALUE_BYTES, ledger=made.book)
        yield made
        check_nothing_lost(made.book, read_all(cluster.bootstrap, "flights"))


class Theatre:
    """Has one scene, in which stages play one after another; one that fails takes it down with it."""

    def __init__(self, new_folder: Callable[[], Path]) -> None:
        self._new_folder = new_folder
        self._open = ExitStack()
        self._scene: Scene | None = None

    @contextmanager
    def stage(self, node_ids: tuple[int, ...]) -> Iterator[Scene]:
        """The scene as it is, or a new one with these nodes."""
        try:
            if self._scene is None:
                self._scene = self._open.enter_context(new_scene(self._new_folder()))
                self._scene.have_nodes(node_ids)
            yield self._scene
        except BaseException:
            self._scene = None
            self._open.__exit__(*sys.exc_info())
            raise

    def close(self) -> None:
        """The last scene ends well or not."""
        self._open.close()


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    missing = [tool for tool in ("bash", "jq", "curl") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"the blocks need {', '.join(missing)}")
    made = Theatre(lambda: tmp_path_factory.mktemp("runbooks"))
    yield made
    made.close()


# --- what is done before, and looked at after -----------------------------------------------------


def nothing(_: Scene) -> None:
    """It is for a cluster that is well."""


def down(*names: str) -> Callable[[Scene], None]:
    def kill(scene: Scene) -> None:
        scene.cluster.kill_several(list(names))

    return kill


def node_lost_disk(scene: Scene) -> None:
    scene.cluster.kill("node-3")


def holds(*node_ids: int) -> Callable[[Scene], None]:
    """Exactly these nodes have replicas, and no others are known."""

    def check(scene: Scene) -> None:
        assert scene.replicas() == set(node_ids)
        assert scene.node_ids() == list(node_ids)

    return check


def voting(scene: Scene) -> None:
    states = [row["state"] for row in scene.said("controller", "list")]
    assert sorted(states) == ["active", "voter", "voter"]


def settled_factor(factor: int) -> Callable[[Scene], None]:
    def check(scene: Scene) -> None:
        found = describe(scene.cluster.bootstrap, "orders").values()
        assert all(len(p.replicas) == factor for p in found)

    return check


def one_node_more(node_id: int) -> Callable[[Scene], None]:
    return lambda scene: scene.add_nodes(node_id)


def last_operation(kind: str, state: str) -> Callable[[Scene], None]:
    def check(scene: Scene) -> None:
        def ended() -> bool:
            newest = scene.said("operation", "list", "--all")[0]
            return bool((newest["kind"], newest["state"]) == (kind, state))

        wait_for(ended, f"the last operation is {kind}, {state}", TIMEOUT_S)

    return check


def cancelled_and_without_node_6(scene: Scene) -> None:
    last_operation("node-drain", "cancelled")(scene)
    scene.shell("penstock node remove 6 --yes --wait 300")


def moved_elsewhere(scene: Scene) -> None:
    scene.shell("penstock topic reassign orders --partition 0 --to 1,2,3 --wait 300")


def in_order(topic: str, *replicas: int) -> Callable[[Scene], None]:
    """Another order of the same replicas is done at once, and no operation."""

    def check(scene: Scene) -> None:
        partition = scene.said("topic", "describe", topic)["partitions"][0]
        assert tuple(partition["replicas"]) == replicas

    return check


def remember_pids(scene: Scene) -> None:
    scene.notes["pids"] = scene.pids("node", "gateway")


def restarted(scene: Scene) -> None:
    before, now = scene.notes["pids"], scene.pids("node", "gateway")
    assert all(now[name] != pid for name, pid in before.items())


def majority_lost(scene: Scene) -> None:
    remember_pids(scene)
    for name in CONTROLLERS[:2]:
        scene.cluster.kill(name)
        shutil.rmtree(scene.data(name))


def quorum_lost(scene: Scene) -> None:
    """After a topic was made that the backup does not know."""
    name = f"later-{len(scene.notes)}"
    create_topic(scene.cluster.bootstrap, name, 2, 3)
    produce(scene.cluster.bootstrap, name, 100)
    scene.notes.setdefault("later", []).append(name)
    remember_pids(scene)
    scene.cluster.kill_several(list(CONTROLLERS))
    for each in CONTROLLERS:
        shutil.rmtree(scene.data(each))


def all_lost(scene: Scene) -> None:
    if not (scene.folder / "backup.penstock").exists():
        scene.shell("penstock cluster export backup.penstock")
    quorum_lost(scene)


def nodes_ran_on(scene: Scene) -> None:
    assert scene.pids("node", "gateway") == scene.notes["pids"]
    voting(scene)
    for name in scene.notes.get("later", []):
        assert len(read_all(scene.cluster.bootstrap, name)) == 100


def all_down(scene: Scene) -> None:
    scene.cluster.kill_several(scene.cluster.alive())


def wrong_volume(scene: Scene) -> None:
    """The disks of two nodes are mixed up, and neither starts."""
    scene.cluster.kill_several(["node-1", "node-2"])
    aside = scene.folder / "aside"
    scene.data("node-1").rename(aside)
    scene.data("node-2").rename(scene.data("node-1"))
    aside.rename(scene.data("node-2"))
    done = subprocess.run(
        [str(Path(sys.executable).with_name("penstock")), "local", "start", "node-1", "node-2"],
        cwd=scene.folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode, "they are refused"
    wait_for(lambda: not {"node-1", "node-2"} & set(scene.cluster.alive()), "both have ended", TIMEOUT_S)


def stray(scene: Scene) -> None:
    """A node is away while a topic is deleted."""
    create_topic(scene.cluster.bootstrap, "gone", 1, 3)
    produce(scene.cluster.bootstrap, "gone", 10)
    scene.cluster.kill("node-3")
    assert run_penstock(["topic", "delete", "gone", "--bootstrap", scene.cluster.bootstrap]) == 0
    scene.cluster.start("node-3")
    wait_for(scene.is_ready, "node 3 is back", TIMEOUT_S)
    wait_for(lambda: scene.said("node", "strays", "3"), "the log was set aside", TIMEOUT_S)


def no_strays(scene: Scene) -> None:
    assert scene.said("node", "strays", "3") == []


def a_group(scene: Scene) -> None:
    consumer = Consumer(client_config(scene.cluster.bootstrap) | {"group.id": "billing"})
    try:
        commit(consumer, [TopicPartition("flights", p, 1) for p in range(PARTITIONS)])
    finally:
        consumer.close()


def a_paused_operation(scene: Scene) -> None:
    scene.notes["added"] = scene.shell("penstock local add node").strip()
    wait_for(scene.is_ready, "the new node is ready", TIMEOUT_S)
    scene.shell("penstock node drain 2 --throttle 1MB/s --yes")
    number = scene.said("operation", "list")[0]["operation_id"]
    scene.said("operation", "pause", str(number))


def taken_back(scene: Scene) -> None:
    last_operation("node-drain", "done")(scene)
    number = scene.notes["added"].removeprefix("node-")
    scene.shell("penstock node uncordon 2 --yes --wait 60")
    scene.shell(f"penstock node replace {number} --with 2 --yes --wait 300")


@dataclass(frozen=True)
class Stage:
    before: Callable[[Scene], None] = nothing
    after: Callable[[Scene], None] = nothing
    long: bool = False
    node_ids: tuple[int, ...] = (1, 2, 3)
    """What stages before it leave."""


STAGES: Final = {
    "Logs that were set aside": Stage(stray, no_strays),
    "Restart every process": Stage(remember_pids, restarted, long=True),
    "Use a new node": Stage(nothing, holds(1, 2, 3, 4)),
    "Empty a node and take it back": Stage(after=holds(1, 2, 3, 4), node_ids=(1, 2, 3, 4)),
    "Move all of one node to another": Stage(after=holds(1, 2, 3, 5), node_ids=(1, 2, 3, 4)),
    "Take a node out for good": Stage(after=holds(1, 2, 3), node_ids=(1, 2, 3, 5)),
    "A node lost its disk": Stage(node_lost_disk),
    "A controller lost its disk": Stage(down("controller-3"), voting),
    "More and fewer copies": Stage(nothing, settled_factor(3)),
    "Make the cluster even": Stage(nothing, last_operation("leader-elect", "done")),
    "Hold an operation up, go on, take it back": Stage(
        one_node_more(6), cancelled_and_without_node_6, long=True, node_ids=(1, 2, 3, 6)
    ),
    "Moves that clients ask for": Stage(moved_elsewhere, in_order("orders", 3, 1, 2), long=True),
    "Switch on what a newer build brought": Stage(long=True),
    "Backup and disaster": Stage(),
    "The majority of controllers lost": Stage(majority_lost, nodes_ran_on, long=True),
    "All controllers lost": Stage(all_lost, nodes_ran_on, long=True),
    "All controllers lost and no backup": Stage(quorum_lost, nodes_ran_on, long=True),
    "All machines lost, disks kept or restored": Stage(all_down, long=True),
    "The wrong volume mounted": Stage(wrong_volume, long=True),
    "Is it well?": Stage(long=True),
    "How long is there room?": Stage(long=True),
    "What happened?": Stage(long=True),
    "A bundle for others": Stage(long=True),
    "Controllers are away": Stage(down("controller-2"), voting, long=True),
    "A storage node is away": Stage(down("node-2"), long=True),
    "A process is away or serves nobody": Stage(down("gateway-1"), long=True),
    "A disk fills up or fails": Stage(long=True),
    "Something is slow": Stage(long=True),
    "Errors of the cluster itself": Stage(long=True),
    "A group is behind": Stage(a_group, long=True),
    "A transaction hangs": Stage(long=True),
    "An operation gets no further": Stage(a_paused_operation, taken_back, long=True),
    "Builds are mixed": Stage(long=True),
    "A slot or a log is left over": Stage(long=True),
    # Which nodes stay is the command's choice.
    "More and fewer processes": Stage(long=True),
}
"""By heading, in the order in which they are run."""


def test_every_block_has_a_stage_or_a_reason_to_be_exempt() -> None:
    blocks = {(heading, i) for heading, found in RUNBOOKS.items() for i in range(len(found))}
    assert set(EXEMPT) <= blocks
    assert {heading for heading, _ in blocks - set(EXEMPT)} == set(STAGES)


def test_every_alert_has_a_runbook() -> None:
    rows = re.findall(
        r"^\| <a id=\"(\w+)\"></a>.*?(?:\[Runbook\]\(#([a-z-]+)\) )?\|$", PAGE.read_text(), re.MULTILINE
    )
    anchors = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in RUNBOOKS}
    assert len(rows) > 20
    assert not [alert for alert, runbook in rows if runbook not in anchors]


def test_blocks_are_plain_lines() -> None:
    """No name in capitals is left to be put in, and no block waits for an answer."""
    for heading, blocks in RUNBOOKS.items():
        for i, block in enumerate(blocks):
            if (heading, i) not in EXEMPT:
                commands = [line.partition(" #")[0] for line in block.splitlines()]
                assert not [c for c in commands if re.search(r"\b[A-Z]{2,}\b", c) and "TERM" not in c], block


@pytest.mark.parametrize(
    "heading",
    [
        pytest.param(
            heading,
            marks=pytest.mark.skipif(stage.long and not LONG, reason="of the long form: make ops-test"),
        )
        for heading, stage in STAGES.items()
    ],
)
def test_a_runbook_runs_as_written(theatre: Theatre, heading: str) -> None:
    stage = STAGES[heading]
    with theatre.stage(stage.node_ids) as scene:
        stage.before(scene)
        for i, block in enumerate(RUNBOOKS[heading]):
            if (heading, i) not in EXEMPT:
                print(scene.shell(block))
        wait_for(partial(Scene.is_ready, scene), "every process is ready", TIMEOUT_S)
        wait_for(partial(Scene.is_whole, scene), "every replica is in sync", TIMEOUT_S)
        stage.after(scene)
        scene.write()
