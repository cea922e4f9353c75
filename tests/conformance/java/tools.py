"""A session with Kafka's command line tools, as a transcript that two right clusters give alike.

    python -m conformance.java.tools record            # against Apache Kafka: writes tools_oracle.json
    python -m conformance.java.tools show <bootstrap>  # what any cluster says

Each `Step` is one call of a tool. What it prints is put into a neutral form: names back to `~topic` and `~group`,
addresses, ids, node numbers and times taken out, runs of blanks to one, lines sorted. The recorded transcript is
Kafka's; the tests compare Penstock's with it.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.targets import KAFKA, Worlds
from support.java import JavaDriver, ToolRun, shared_driver

ORACLE = Path(__file__).parent / "tools_oracle.json"
UNTIL_TIMEOUT_S = 60.0
TOOL_TIMEOUT_S = 150.0


@dataclass(frozen=True)
class Step:
    """One call. `{topic}`, `{group}` and `{folder}` stand for this run's names."""

    name: str
    tool: str
    arguments: str
    stdin: str = ""
    until: str = ""
    """Call it again until this is found in what it prints (a reassignment takes its time)."""
    judge: str = "text"
    """What is compared: "text" all that is printed, "words" the first word of every line, "exit" the code alone."""
    says: str = ""
    """Must be found in what it prints, whatever it is judged by."""
    direct_only: bool = False
    """Asks nodes without naming them: a proxy cannot tell which is meant, and says so."""


RECORDS = "".join(f"key-{n}\tvalue {n}\n" for n in range(24))

_TOPICS = [
    Step("create", "TopicCommand", "--create --topic {topic} --partitions 3 --replication-factor 3"
         " --config retention.ms=3600000 --config cleanup.policy=delete"),
    Step("create again", "TopicCommand", "--create --topic {topic}", judge="exit"),
    Step("create if not there", "TopicCommand", "--create --if-not-exists --topic {topic}"),
    Step("create with too many replicas", "TopicCommand", "--create --topic {topic}-x --replication-factor 9",
         judge="exit"),
    Step("create with a setting that is none", "TopicCommand", "--create --topic {topic}-x --config no.such=1",
         judge="exit"),
    Step("describe", "TopicCommand", "--describe --topic {topic}",
         until=r"(?s)(Isr: \d,\d,\d\s.*){3}"),
    Step("more partitions", "TopicCommand", "--alter --topic {topic} --partitions 4"),
    Step("fewer partitions", "TopicCommand", "--alter --topic {topic} --partitions 2", judge="exit"),
    Step("list", "TopicCommand", "--list --topic {topic}"),
    Step("under-replicated", "TopicCommand", "--describe --topic {topic} --under-replicated-partitions"),
    Step("unavailable", "TopicCommand", "--describe --topic {topic} --unavailable-partitions"),
    Step("with overrides", "TopicCommand", "--describe --topic {topic} --topics-with-overrides"),
    Step("describe what is not there", "TopicCommand", "--describe --topic {topic}-x", judge="exit"),
]  # fmt: skip
_RECORDS = [
    Step("produce", "ConsoleProducer", "--topic {topic} --reader-property parse.key=true"
         " --command-property acks=all", stdin=RECORDS),
    Step("produce compressed", "ConsoleProducer", "--topic {topic} --compression-codec zstd"
         " --reader-property parse.key=true --reader-property parse.headers=true",
         stdin="a:1,b:2\tkey-0\twith headers\n"),
    Step("consume", "ConsoleConsumer", "--topic {topic} --from-beginning --max-messages 25 --group {group}"
         " --timeout-ms 120000 --formatter-property print.key=true --formatter-property print.headers=true"
         " --formatter-property print.partition=true --formatter-property print.offset=true"),
    Step("consume one partition", "ConsoleConsumer", "--topic {topic} --partition 0 --offset 2 --max-messages 2"
         " --timeout-ms 120000"),
    Step("end offsets", "GetOffsetShell", "--topic {topic}"),
    Step("first offsets", "GetOffsetShell", "--topic {topic} --time earliest"),
    Step("offsets of one partition", "GetOffsetShell", "--topic-partitions {topic}:1 --time latest"),
    Step("offsets by time", "GetOffsetShell", "--topic {topic} --time 1000"),
    Step("offsets after all", "GetOffsetShell", "--topic {topic} --time 95617584000000"),
    Step("earliest local offsets", "GetOffsetShell", "--topic {topic} --time earliest-local"),
    Step("newest records", "GetOffsetShell", "--topic {topic} --time max-timestamp", judge="words"),
]  # fmt: skip
_RESET = "--reset-offsets --group {group} --topic {topic}"
_GROUPS = [
    Step("groups", "ConsumerGroupCommand", "--list --state empty", until=r"{group}\s+Empty", judge="exit"),
    Step("group", "ConsumerGroupCommand", "--describe --group {group}"),
    Step("state", "ConsumerGroupCommand", "--describe --group {group} --state"),
    Step("members", "ConsumerGroupCommand", "--describe --group {group} --members --verbose"),
    Step("no such group", "ConsumerGroupCommand", "--describe --group {group}-x"),
    Step("reset, dry run", "ConsumerGroupCommand", f"{_RESET} --to-earliest --dry-run"),
    Step("reset by", "ConsumerGroupCommand", f"{_RESET} --shift-by=-2 --execute"),
    Step("reset to an offset", "ConsumerGroupCommand", f"{_RESET}:0 --to-offset 1 --execute"),
    Step("reset beyond the end", "ConsumerGroupCommand", f"{_RESET}:0 --to-offset 1000 --execute"),
    Step(
        "reset to a time", "ConsumerGroupCommand", f"{_RESET} --to-datetime 2020-01-01T00:00:00.000 --execute"
    ),
    Step("reset by a duration", "ConsumerGroupCommand", f"{_RESET} --by-duration P1D --execute"),
    Step("reset to latest", "ConsumerGroupCommand", f"{_RESET} --to-latest --execute"),
    Step("export", "ConsumerGroupCommand", f"{_RESET} --to-current --export"),
    Step("after the resets", "ConsumerGroupCommand", "--describe --group {group}"),
    Step("delete offsets", "ConsumerGroupCommand", "--delete-offsets --group {group} --topic {topic}:0"),
    Step("after that", "ConsumerGroupCommand", "--describe --group {group}"),
    Step("delete", "ConsumerGroupCommand", "--delete --group {group}"),
    Step("delete again", "ConsumerGroupCommand", "--delete --group {group}"),
    Step("all kinds of groups", "GroupsCommand", "--list", judge="exit"),
]
_CONFIGS = [
    Step("configs", "ConfigCommand", "--describe --topic {topic}", judge="words"),
    Step("set configs", "ConfigCommand",
         "--alter --topic {topic} --add-config retention.ms=7200000,max.message.bytes=2000000"),
    Step("append to a config", "ConfigCommand", "--alter --topic {topic} --add-config cleanup.policy=[compact,delete]"),
    Step("delete a config", "ConfigCommand",
         "--alter --topic {topic} --delete-config retention.ms,cleanup.policy"),
    Step("configs now", "ConfigCommand", "--describe --topic {topic}", judge="words"),
    Step("a value that is none", "ConfigCommand", "--alter --topic {topic} --add-config retention.ms=soon",
         judge="exit"),
    Step("a setting that is none", "ConfigCommand", "--alter --topic {topic} --add-config no.such=1", judge="exit"),
    Step("all configs", "ConfigCommand", "--describe --topic {topic} --all", judge="exit",
         says="max.message.bytes=2000000 sensitive=false synonyms=.DYNAMIC_TOPIC_CONFIG"),
    Step("configs of a node", "ConfigCommand", "--describe --broker 1 --all", judge="exit", says="node.id=1"),
    Step("configs of all nodes", "ConfigCommand", "--describe --broker-defaults", judge="exit"),
    Step("configs of a group", "ConfigCommand",
         "--alter --group {group} --add-config consumer.session.timeout.ms=50000"),
    Step("group configs", "ConfigCommand", "--describe --group {group}", judge="words"),
    Step("group configs back", "ConfigCommand", "--alter --group {group} --delete-config consumer.session.timeout.ms"),
]  # fmt: skip
_PARTITIONS = [
    Step("delete records", "DeleteRecordsCommand", "--offset-json-file {folder}/delete.json"),
    Step("delete records that are not there", "DeleteRecordsCommand", "--offset-json-file {folder}/beyond.json"),
    Step("first offsets after that", "GetOffsetShell", "--topic {topic} --time earliest"),
    Step("preferred leader", "LeaderElectionCommand", "--election-type preferred --topic {topic} --partition 0"),
    Step("preferred leaders", "LeaderElectionCommand", "--election-type preferred --all-topic-partitions",
         judge="exit"),
    Step("log directories", "LogDirsCommand", "--describe --topic-list {topic} --broker-list 1,2,3", judge="exit",
         says=r'"broker":3,"logDirs":.{"partitions":.{"partition":"', direct_only=True),
    Step("plan", "ReassignPartitionsCommand",
         "--generate --topics-to-move-json-file {folder}/move.json --broker-list 1,2,3", judge="words"),
    Step("reassign", "ReassignPartitionsCommand", "--execute --reassignment-json-file {folder}/reassign.json",
         judge="words"),
    Step("reassigned", "ReassignPartitionsCommand", "--verify --reassignment-json-file {folder}/reassign.json",
         until="is completed"),
    Step("no more reassignments", "ReassignPartitionsCommand", "--list", until="No partition reassignments"),
    Step("nothing to cancel", "ReassignPartitionsCommand",
         "--cancel --reassignment-json-file {folder}/reassign.json", judge="exit"),
]  # fmt: skip
_CLUSTER = [
    Step("quorum", "MetadataQuorumCommand", "describe --status", judge="words"),
    Step("replication of the quorum", "MetadataQuorumCommand", "describe --replication", judge="exit"),
    Step("features", "FeatureCommand", "describe", judge="exit"),
    Step("cluster id", "ClusterTool", "cluster-id"),
    Step("endpoints", "ClusterTool", "list-endpoints"),
    Step("api versions", "BrokerApiVersionsCommand", "", judge="exit", says=r"Produce\(0\): 0 to 1[13]"),
    Step(
        "producers", "TransactionsCommand", "describe-producers --topic {topic} --partition 1", judge="exit"
    ),
]
_SPEED = [
    Step("producer performance", "ProducerPerformance",
         "--topic {topic} --num-records 2000 --record-size 100 --throughput -1", judge="exit",
         says="(?m)^2000 records sent"),
    Step("consumer performance", "ConsumerPerformance", "--topic {topic} --num-records 2000 --timeout 120000"
         " --group {group}-p", judge="exit", says=r"\n[^\n]*, 0\.\d+, [\d.]+, 20\d\d, "),
    Step("latency from end to end", "EndToEndLatency",
         "--topic {topic} --num-records 50 --producer-acks all --record-size 100", judge="exit",
         says="Avg latency: "),
]  # fmt: skip
_END = [
    Step("delete the topic", "TopicCommand", "--delete --topic {topic}"),
    Step("delete it again", "TopicCommand", "--delete --topic {topic}", judge="exit"),
    Step("delete if there", "TopicCommand", "--delete --if-exists --topic {topic}"),
]
STEPS = [*_TOPICS, *_RECORDS, *_GROUPS, *_CONFIGS, *_PARTITIONS, *_CLUSTER, *_SPEED, *_END]
FEW_STEPS = [_TOPICS[0], _TOPICS[6], *_RECORDS[:2], *_PARTITIONS, *_CLUSTER, _END[0]]
"""For a direct listener, which answers by the same code: what differs, and what that needs."""

_NOISE = re.compile(
    r"^(warning|SLF4J|option --|exit$|The consumer rebalance protocol|Querying )", re.IGNORECASE
)
_PUT_BACK: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"TopicId: \S+"), "TopicId: ~"),
    (re.compile(r"127\.0\.0\.1[: ]\s*\d+"), "~address"),
    (re.compile(r"Leader: \d"), "Leader: ~"),
    (re.compile(r"(Replicas|Isr): ([\d,]+)"), lambda m: f"{m[1]}: {','.join(sorted(m[2].split(',')))}"),
    (re.compile(r"(ELR|LastKnownElr): ?(?=\S*)", re.IGNORECASE), ""),
    (re.compile(r",?min\.insync\.replicas=2,?"), ""),
    (re.compile(r"\(\d\)"), "(~)"),
    (re.compile(r"Cluster ID: \S+"), "Cluster ID: ~"),
    # Settings in the order of some map.
    (re.compile(r" are (\S+=.+)$", re.MULTILINE), lambda m: f" are {', '.join(sorted(m[1].split(', ')))}"),
]


@dataclass(frozen=True)
class Line:
    """What a step came to, in neutral form."""

    step: str
    exit: int | None
    said: list[str]


def play(
    driver: JavaDriver, bootstrap: str, folder: Path, steps: Sequence[Step], *, proxy: bool
) -> Iterator[tuple[Line, ToolRun]]:
    """Run the steps; `folder` is for the files that tools read."""
    names = {"topic": f"tools-{uuid.uuid4().hex[:8]}", "folder": str(folder)}
    names["group"] = f"group-of-{names['topic']}"
    names["user"] = f"user-of-{names['topic']}"
    _write_files(folder, names["topic"])
    for step in steps:
        if not (proxy and step.direct_only):
            run = _call(driver, step, bootstrap, names)
            yield Line(step.name, run.exit, _neutral(step, run, names)), run


def recorded(file: Path = ORACLE) -> dict[str, Line]:
    """Kafka's transcript by step."""
    rows: list[dict[str, Any]] = json.loads(file.read_text())
    return {row["step"]: Line(**row) for row in rows}


def _write_files(folder: Path, topic: str) -> None:
    deletions = [
        {"topic": topic, "partition": 0, "offset": 2},
        {"topic": topic, "partition": 1, "offset": -1},
    ]
    (folder / "delete.json").write_text(json.dumps({"version": 1, "partitions": deletions}))
    beyond = [{"topic": topic, "partition": 0, "offset": 100_000}]
    (folder / "beyond.json").write_text(json.dumps({"version": 1, "partitions": beyond}))
    (folder / "move.json").write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    moves = [{"topic": topic, "partition": p, "replicas": [1 + p % 3, 1 + (p + 1) % 3]} for p in range(3)]
    (folder / "reassign.json").write_text(json.dumps({"version": 1, "partitions": moves}))


def _call(driver: JavaDriver, step: Step, bootstrap: str, names: dict[str, str]) -> ToolRun:
    arguments = [word.format(**names) for word in step.arguments.split()]
    address = ["--bootstrap-server", bootstrap]
    if step.tool in ("MetadataQuorumCommand", "FeatureCommand", "TransactionsCommand"):
        arguments = address + arguments
    elif step.tool == "ProducerPerformance":
        arguments += ["--command-property", f"bootstrap.servers={bootstrap}"]
    else:
        arguments += address
    until = step.until.format(**names) if "{group}" in step.until else step.until
    deadline = time.monotonic() + UNTIL_TIMEOUT_S
    while True:
        run = driver.tool(step.tool, *arguments, stdin=step.stdin, timeout_s=TOOL_TIMEOUT_S, exit=None)
        if not until or re.search(until, run.stdout) or time.monotonic() > deadline:
            return run
        time.sleep(0.2)


def _neutral(step: Step, run: ToolRun, names: dict[str, str]) -> list[str]:
    if step.judge == "exit":
        return []
    text = run.text.replace(names["group"], "~group").replace(names["topic"], "~topic")
    text = text.replace(names["folder"], "~folder")
    for pattern, instead in _PUT_BACK:
        text = pattern.sub(instead, text)
    lines = [" ".join(line.split()) for line in text.splitlines() if not _NOISE.match(line)]
    if step.judge == "words":
        lines = [re.split(r"[ =:]", line)[0] for line in lines]
    return sorted(line for line in lines if line)


def _record() -> None:
    with tempfile.TemporaryDirectory() as folder, Worlds(Path(folder) / "worlds") as worlds:
        bootstrap = worlds.address(KAFKA)
        rows = [
            dataclasses.asdict(line)
            for line, _ in play(shared_driver(), bootstrap, Path(folder), STEPS, proxy=False)
        ]
    ORACLE.write_text(json.dumps(rows, indent=1) + "\n")


def _show(bootstrap: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for line, run in play(shared_driver(), bootstrap, Path(folder), STEPS, proxy=False):
            sys.stdout.write(f"--- {line.step}: {line.exit}\n{run.text}\n{line.said}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1:] == ["record"]:
        _record()
    else:
        _show(sys.argv[2])
