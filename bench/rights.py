"""What rights cost: a question, Metadata for somebody who sees little, a change of one ACL.

    python -m bench.rights [--acls 10000] [--users 1000] [--topics 10000] [--seen 100] [--json]

In one process, without network: the authorizer and the answers to Metadata of gateways and storage nodes. CPU time,
the least of several rounds that take turns, so that a busy machine is busy for all of them.

  question warm    about a topic that was asked about before; the limit of the project is 1 us
  question cold    about a topic for the first time
  everybody        who asks where nobody's rights are looked at
  metadata warm    all topics, the same question once more
  metadata cold    the first time after the topics changed
  one ACL changes  what the authorizer does then
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from penstock_core.metadata.image import MetadataImage
from penstock_core.security.acl import AclOperation, PatternType, Permission, ResourceType
from penstock_core.security.principal import Identity, user
from penstock_frontend.acl_authorizer import AclAuthorizer
from penstock_frontend.authorizer import AllowAll
from penstock_frontend.cluster.lost_nodes import LostNodes
from penstock_frontend.cluster.metadata_answers import MetadataAnswers
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import parse_request_header, request_header
from penstock_proto.v1 import metadata_pb2 as pb

ROUNDS = 5
VERSION = 12


class Addresses:
    """Everybody finds nodes at the same place."""

    def node_address(self, _connection: Any, _node: Any) -> tuple[str, int]:
        return "127.0.0.1", 9092

    def view_key(self, _connection: Any) -> str:
        return ""

    def apis(self, _image: Any) -> dict[int, tuple[int, int]]:
        return {}


class Asker:
    """A connection, as far as Metadata looks at it."""

    def __init__(self, who: Identity) -> None:
        self.identity = who


def topic_name(number: int) -> str:
    """Of one topic."""
    return f"topic-{number:06}"


def topics(count: int) -> MetadataImage:
    """A cluster with so many topics of one partition."""
    records = [
        pb.MetadataRecord(node=pb.NodeRecord(node_id=1)),
    ]
    for number in range(count):
        topic_id = UUID(int=number + 1).bytes
        records.append(pb.MetadataRecord(topic=pb.TopicRecord(topic_id=topic_id, name=topic_name(number))))
        partition = pb.PartitionRecord(topic_id=topic_id, partition=0, replicas=[1], isr=[1], leader=1)
        records.append(pb.MetadataRecord(partition=partition))
    return MetadataImage().apply(records, 1)


def acl_records(acls: int, users: int, topic_count: int, seen: int) -> list[pb.MetadataRecord]:
    """`acls` entries for `users`; the first of them may describe `seen` topics by name, the others have a mixture."""
    records = [_acl(0, topic_name(number * (topic_count // seen))) for number in range(min(seen, acls))]
    for number in range(acls - len(records)):
        who = 1 + number % max(1, users - 1)
        kinds = number // max(1, users - 1) % 4
        if kinds == 0:
            records.append(_acl(who, topic_name(number % topic_count)))
        elif kinds == 1:
            records.append(_acl(who, topic_name(number % topic_count)[:-2], prefixed=True))
        elif kinds == 2:
            records.append(_acl(who, f"group-{who}", kind=ResourceType.GROUP))
        else:
            records.append(_acl(who, topic_name(number % topic_count), deny=True))
    return records


def _acl(
    who: int,
    name: str,
    *,
    prefixed: bool = False,
    deny: bool = False,
    kind: ResourceType = ResourceType.TOPIC,
) -> pb.MetadataRecord:
    entry = pb.AclRecord(
        resource_type=kind,
        pattern_type=PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        resource_name=name,
        principal=f"User:user-{who}",
        host="*",
        operation=AclOperation.READ,
        permission=Permission.DENY if deny else Permission.ALLOW,
    )
    return pb.MetadataRecord(acl=entry)


def identity(number: int) -> Identity:
    """Of one user."""
    return Identity(user(f"user-{number}"), "10.0.0.1")


def cpu_s(call: Callable[[], object]) -> float:
    """CPU seconds of a call."""
    began_s = time.process_time()
    call()
    return time.process_time() - began_s


def question(authorizer: Any, users: int, asking_count: int, names: Sequence[str], rounds: int) -> float:
    """Seconds for a question, over all these names by so many of the users."""
    asking = [identity(number) for number in range(0, users, max(1, users // asking_count))]

    def ask() -> None:
        allows = authorizer.allows
        for who in asking:
            for name in names:
                allows(who, AclOperation.READ, ResourceType.TOPIC, name)

    return min(cpu_s(ask) for _ in range(rounds)) / (len(asking) * len(names))


def follow(
    authorizer: AclAuthorizer, image: MetadataImage, records: list[pb.MetadataRecord]
) -> MetadataImage:
    """The image with these records, of which the authorizer has heard."""
    after = image.apply(records, image.version + 1)
    authorizer.metadata_changed(image, after, records)
    return after


def metadata(image: MetadataImage, authorizer: Any, who: Identity) -> tuple[float, float, int]:
    """Seconds for all topics cold and warm, and the bytes of the answer."""
    current = [image]
    addresses = Addresses()
    lost_nodes = LostNodes(addresses, lambda: 0)
    answers = MetadataAnswers(lambda: current[0], addresses, authorizer, lambda _: 1, lost_nodes)
    request = codec.build(
        codec.request_type(ApiKey.METADATA, VERSION),
        topics=None,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    frame = bytearray(request_header(ApiKey.METADATA, VERSION, 7, "bench") + codec.encode_body(request))
    header = parse_request_header(frame)
    asker: Any = Asker(who)
    size = len(answers.answer(asker, header, frame))
    cold_s, warm_s = [], []
    for number in range(ROUNDS):
        topic = pb.TopicRecord(topic_id=UUID(int=1_000_000 + number).bytes, name=f"new-{number}")
        current[0] = current[0].apply([pb.MetadataRecord(topic=topic)], current[0].version + 1)
        cold_s.append(cpu_s(lambda: answers.answer(asker, header, frame)))
        warm_s.append(cpu_s(lambda: [answers.answer(asker, header, frame) for _ in range(100)]) / 100)
    return min(cold_s), min(warm_s), size


def measure(acls: int, users: int, topic_count: int, seen: int) -> dict[str, float]:
    """All the figures."""
    image = topics(topic_count)
    authorizer = AclAuthorizer()
    records = acl_records(acls, users, topic_count, seen)
    found: dict[str, float] = {}
    begun = time.process_time()
    image = follow(authorizer, image, records)
    found["all ACLs at once, ms"] = (time.process_time() - begun) * 1000
    names = [topic_name(number * (topic_count // 100)) for number in range(100)]
    found["question cold, us"] = question(authorizer, users, 20, names, 1) * 1e6
    found["question warm, us"] = question(authorizer, users, 20, names, ROUNDS * 4) * 1e6
    found["question warm, by every user, us"] = question(authorizer, users, users, names[:10], ROUNDS) * 1e6
    found["everybody, us"] = question(AllowAll(), users, 20, names, ROUNDS * 4) * 1e6
    changes = []
    for number in range(ROUNDS):
        one = [_acl(1, f"another-{number}")]
        after = image.apply(one, image.version + 1)
        changes.append(cpu_s(partial(authorizer.metadata_changed, image, after, one)))
        image = after
    found["one ACL changes, ms"] = min(changes) * 1000
    for label, who, decides in (
        ("all", identity(1), AllowAll()),
        (f"{seen} topics", identity(0), authorizer),
    ):
        cold_s, warm_s, size = metadata(image, decides, who)
        found[f"metadata cold, sees {label}, ms"] = cold_s * 1000
        found[f"metadata warm, sees {label}, us"] = warm_s * 1e6
        found[f"metadata, sees {label}, bytes"] = size
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and show."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.rights", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--acls", type=int, default=10_000)
    parser.add_argument("--users", type=int, default=1_000)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--seen", type=int, default=100, help="topics that the first user may describe")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    found = measure(options.acls, options.users, options.topics, options.seen)
    if options.json:
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        for name, value in found.items():
            sys.stdout.write(f"{name:40} {value:12,.2f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
