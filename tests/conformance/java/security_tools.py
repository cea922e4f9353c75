"""A session with kafka-acls and kafka-configs as administrators of users, ACLs and quotas have it.

    python -m conformance.java.security_tools record             # against Apache Kafka: writes its transcript
    python -m conformance.java.security_tools show penstock-proxy  # or any target

The administrator signs in by SCRAM. Written and compared as in `conformance.java.tools`.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from conformance.java.tools import Line, Step, play, recorded
from conformance.secure_world import PASSWORD, Doors
from conformance.sign_in import set_acls, set_users
from conformance.targets import KAFKA, SECURE, Worlds
from penstock_core.security.scram import ScramMechanism
from support.java import JavaDriver, ToolRun, shared_driver

ORACLE = Path(__file__).parent / "security_tools_oracle.json"
ADMIN = "admin"
"""One of `secure_world.SUPER_USERS`."""
SETTINGS = (
    "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
    "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required"
    f' username="{ADMIN}" password="{PASSWORD}";\n'
)


def _acls(name: str, arguments: str, judge: str = "text") -> Step:
    return Step(name, "AclCommand", f"{arguments} --command-config {{folder}}/admin.properties", judge=judge)


def _configs(name: str, arguments: str, judge: str = "text") -> Step:
    return Step(
        name, "ConfigCommand", f"{arguments} --command-config {{folder}}/admin.properties", judge=judge
    )


_MINE = "--allow-principal User:{user}"
_LIST = "--list --principal User:{user}"
_ACLS = [
    _acls("nothing yet", f"{_LIST} --topic {{topic}}"),
    _acls("add", f"--add {_MINE} --operation Read --operation Write --topic {{topic}}"),
    _acls("add again", f"--add {_MINE} --operation Read --operation Write --topic {{topic}}"),
    _acls("everything", f"--add {_MINE} --topic {{topic}}-all"),
    _acls("prefixed", f"--add {_MINE} --operation Read --topic {{topic}} --resource-pattern-type prefixed"),
    _acls("many principals and hosts", f"--add {_MINE} --allow-principal User:{{user}}-2 --allow-host 10.0.0.1"
          " --allow-host ::1 --operation Describe --topic {topic}"),
    _acls("deny", "--add --deny-principal User:{user} --deny-host 10.0.0.9 --operation All --topic {topic}"),
    _acls("deny and allow", f"--add {_MINE} --deny-principal User:{{user}}-2 --operation Alter --topic {{topic}}"),
    _acls("group", f"--add {_MINE} --operation Read --operation Delete --group {{group}}"),
    _acls("all groups", f"--add {_MINE} --operation Read --group *"),
    _acls("transactional id", f"--add {_MINE} --operation Write --transactional-id {{topic}}-tx"),
    _acls("cluster", f"--add {_MINE} --operation DescribeConfigs --cluster"),
    _acls("delegation token", f"--add {_MINE} --operation Describe --delegation-token {{topic}}-token"),
    _acls("tokens of a user", f"--add {_MINE} --operation CreateTokens --user-principal User:{{user}}-3"),
    _acls("several resources", f"--add {_MINE} --operation Describe --topic {{topic}}-1 --topic {{topic}}-2"
          " --group {group}-1"),
    _acls("list of a topic", "--list --topic {topic}"),
    _acls("list of a prefix", "--list --topic {topic} --resource-pattern-type prefixed"),
    _acls("list of what matches", f"{_LIST} --topic {{topic}}-1 --resource-pattern-type match"),
    _acls("list of any pattern", f"{_LIST} --topic {{topic}} --resource-pattern-type any"),
    _acls("list of two principals", f"{_LIST} --principal User:{{user}}-2 --topic {{topic}}"),
    _acls("list of a principal", _LIST),
    _acls("producer", f"--add {_MINE} --producer --topic {{topic}}-p"),
    _acls("producer with an id", f"--add {_MINE} --producer --topic {{topic}}-p --transactional-id {{topic}}-tx"),
    _acls("idempotent producer", f"--add {_MINE} --producer --idempotent --topic {{topic}}-p"),
    _acls("producer of a prefix", f"--add {_MINE} --producer --topic {{topic}}-p"
          " --resource-pattern-type prefixed"),
    _acls("consumer", f"--add {_MINE} --consumer --topic {{topic}}-c --group {{group}}-c"),
    _acls("consumer of a prefix", f"--add {_MINE} --consumer --topic {{topic}}-c --group {{group}}-c"
          " --resource-pattern-type prefixed"),
    _acls("both", f"--add {_MINE} --producer --consumer --topic {{topic}}-b --group {{group}}-b"),
    _acls("consumer without a group", f"--add {_MINE} --consumer --topic {{topic}}-c", "exit"),
    _acls("shortcuts in the list", _LIST),
    _acls("remove of the producer", f"--remove --force {_MINE} --producer --topic {{topic}}-p"),
    _acls("remove of the consumer", f"--remove --force {_MINE} --consumer --topic {{topic}}-c --group {{group}}-c"),
    _acls("remove", f"--remove --force {_MINE} --operation Write --topic {{topic}}"),
    _acls("remove what is not there", f"--remove --force {_MINE} --operation Write --topic {{topic}}"),
    _acls("remove all of a topic", "--remove --force --topic {topic}"),
    _acls("list after that", _LIST),
    _acls("an operation that a topic has not", f"--add {_MINE} --operation ClusterAction --topic {{topic}}",
          "exit"),
    _acls("an operation that there is not", f"--add {_MINE} --operation Fetch --topic {{topic}}", "exit"),
    _acls("a principal without a type", "--add --allow-principal {user} --operation Read --topic {topic}",
          "exit"),
    _acls("add of any pattern", f"--add {_MINE} --operation Read --topic {{topic}} --resource-pattern-type any",
          "exit"),
    _acls("no resource", f"--add {_MINE} --operation Read", "exit"),
    _acls("a producer of a group", f"--add {_MINE} --producer --group {{group}}", "exit"),
]  # fmt: skip
_USER = "--entity-type users --entity-name {user}"
_USERS = [
    _configs("a user", f"--alter --add-config SCRAM-SHA-256=[iterations=8192,password=secret] {_USER}"),
    _configs("its other mechanism", f"--alter --add-config SCRAM-SHA-512=[password=secret] {_USER}"),
    _configs("describe", f"--describe {_USER}"),
    _configs("another password", f"--alter --add-config SCRAM-SHA-256=[password=other] {_USER}"),
    _configs("describe again", "--describe --user {user}"),
    _configs("too few iterations", f"--alter --add-config SCRAM-SHA-256=[iterations=100,password=x] {_USER}",
             "exit"),
    _configs("too many iterations", f"--alter --add-config SCRAM-SHA-256=[iterations=20000,password=x] {_USER}",
             "exit"),
    _configs("an unknown mechanism", f"--alter --add-config SCRAM-SHA-1=[password=x] {_USER}", "exit"),
    _configs("no password", f"--alter --add-config SCRAM-SHA-256=[iterations=8192] {_USER}", "exit"),
    _configs("delete a mechanism", f"--alter --delete-config SCRAM-SHA-512 {_USER}"),
    _configs("delete it again", f"--alter --delete-config SCRAM-SHA-512 {_USER}", "exit"),
    _configs("describe the rest", f"--describe {_USER}"),
    _configs("delete the rest", f"--alter --delete-config SCRAM-SHA-256 {_USER}"),
    _configs("describe nobody", f"--describe {_USER}"),
]  # fmt: skip
_BYTES = "producer_byte_rate=1024,consumer_byte_rate=2048"
_QUOTAS = [
    _configs("of a user", f"--alter --add-config {_BYTES},request_percentage=50.5 --user {{user}}"),
    _configs("of a user's client", "--alter --add-config controller_mutation_rate=5 --user {user}"
             " --client {topic}-client"),
    _configs("of a user's clients", f"--alter --add-config {_BYTES} --user {{user}} --client-defaults"),
    _configs("of a client", f"--alter --add-config {_BYTES} --client {{topic}}-client"),
    _configs("of an address", "--alter --add-config connection_creation_rate=10 --ip 10.9.8.7"),
    _configs("of all users", "--alter --add-config request_percentage=400 --user-defaults"),
    _configs("describe a user", "--describe --user {user}"),
    _configs("describe a user's client", "--describe --user {user} --client {topic}-client"),
    _configs("describe a user's clients", "--describe --user {user} --client-defaults"),
    _configs("describe a client", "--describe --client {topic}-client"),
    _configs("describe an address", "--describe --ip 10.9.8.7"),
    _configs("describe all users", "--describe --user-defaults"),
    _configs("by types", "--describe --entity-type users --entity-name {user} --entity-type clients"),
    _configs("describe nobody's", "--describe --user {user}-nobody"),
    _configs("changed and deleted", "--alter --add-config producer_byte_rate=4096 --delete-config"
             " request_percentage --user {user}"),
    _configs("after that", "--describe --user {user}"),
    _configs("a key that is none", "--alter --add-config no_such_rate=1 --user {user}", "exit"),
    _configs("a key of addresses for a user", "--alter --add-config connection_creation_rate=1 --user {user}",
             "exit"),
    _configs("a value that is none", "--alter --add-config producer_byte_rate=many --user {user}", "exit"),
    _configs("a negative value", "--alter --add-config producer_byte_rate=-1 --user {user}", "exit"),
    _configs("a fraction of a byte", "--alter --add-config producer_byte_rate=1.5 --user {user}", "exit"),
    _configs("an address that is none", "--alter --add-config connection_creation_rate=1 --ip 300.1.1.1", "exit"),
    _configs("delete of a user", "--alter --delete-config producer_byte_rate,consumer_byte_rate --user {user}"),
    _configs("delete of a user's client", "--alter --delete-config controller_mutation_rate --user {user}"
             " --client {topic}-client"),
    _configs("delete of a client", "--alter --delete-config producer_byte_rate,consumer_byte_rate"
             " --client {topic}-client"),
    _configs("delete of an address", "--alter --delete-config connection_creation_rate --ip 10.9.8.7"),
    _configs("delete of all users", "--alter --delete-config request_percentage --user-defaults"),
    _configs("delete what is not there", "--alter --delete-config producer_byte_rate --user {user}", "exit"),
    _configs("all of it is gone", "--describe --user {user}"),
]  # fmt: skip
STEPS = [
    *_ACLS,
    *(dataclasses.replace(step, name=f"user: {step.name}") for step in _USERS),
    *(dataclasses.replace(step, name=f"quota: {step.name}") for step in _QUOTAS),
]


def session(driver: JavaDriver, doors: Doors, folder: Path) -> Iterator[tuple[Line, ToolRun]]:
    """All the steps, by a listener where one signs in; `folder` is for the files that tools read."""
    set_users(doors.plain, [ADMIN], tuple(ScramMechanism))
    set_acls(doors, [], f"tools-of-{folder.name}")
    settings = folder / "admin.properties"
    settings.touch(0o600)
    settings.write_text(SETTINGS)
    return play(driver, doors.sasl, folder, STEPS, proxy=False)


def oracle() -> dict[str, Line]:
    """Kafka's transcript by step."""
    return recorded(ORACLE)


def _main(words: list[str]) -> None:
    target = KAFKA if words == ["record"] else words[1]
    with tempfile.TemporaryDirectory() as folder, Worlds(Path(folder) / "worlds") as worlds:
        doors = worlds.doors[worlds.address(target, SECURE)]
        rows = []
        for line, run in session(shared_driver(), doors, Path(folder)):
            rows.append(dataclasses.asdict(line))
            if words[0] == "show":
                sys.stdout.write(f"--- {line.step}: {line.exit}\n{run.text}\n")
    if words == ["record"]:
        ORACLE.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    _main(sys.argv[1:])
