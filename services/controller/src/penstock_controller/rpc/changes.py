"""What each changing call has changed, as lines of the audit log. Never keys, salts or passwords.

`told_to(audit, service)` has the service tell. The lines are made beside the event loop, by the audit log's thread; a
call that only checks (`validate_only`) changes nothing and is not told. Who asked is what the gateway or node
says of its client, and, where roles show certificates, which of them called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, Final, TypeVar

from penstock_core.errors import ErrorCode
from penstock_core.security.acl import AclOperation, PatternType, Permission, ResourceType, from_code
from penstock_core.security.audit import CHANGE, Event
from penstock_core.security.scram import ScramMechanism
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import operations_pb2
from penstock_runtime.audit import Audit
from penstock_runtime.security.callers import caller

S = TypeVar("S")

Changes = Callable[[Any, Any], Iterable[dict[str, object]]]
"""From a request and its answer: what was to be changed, each with the error that came of it."""
OK: Final = "ok"


def told_to(audit: Audit, service: S) -> S:
    """The service, whose changing methods tell of what they did."""
    for method, changes in CHANGES.items():
        setattr(service, method, _telling(audit, method, changes, getattr(service, method)))
    return service


def _telling(audit: Audit, method: str, changes: Changes, call: Callable[[Any, Any], Any]) -> Any:
    @wraps(call)
    async def tells(request: Any, context: Any) -> Any:
        reply = await call(request, context)
        if not (getattr(request, "validate_only", False) or getattr(request, "dry_run", False)):
            via = caller()
            audit.tell_changes(
                lambda: lines(method, changes, request, reply, "" if via is None else str(via))
            )
        return reply

    return tells


def lines(method: str, changes: Changes, request: Any, reply: Any, via: str = "") -> Iterator[Event]:
    """The lines of one call."""
    whole = reply.error.code if reply.HasField("error") else 0
    common = {
        "event": CHANGE,
        "principal": getattr(request, "principal", ""),
        "via": via,
        "api": method,
    }
    version = getattr(reply, "version", None)
    for change in changes(request, reply):
        code = whole or change.pop("code", 0)
        change.pop("code", None)
        outcome = _name(code)
        yield {**common, "outcome": outcome, **change, "version": None if code else version}


def _name(code: object) -> str:
    if not code:
        return OK
    try:
        return ErrorCode(int(str(code))).name.lower()
    except ValueError:
        return f"error {code}"


def _code(results: Any, index: int) -> int:
    """Of the answer in that place; an answer that failed as a whole may have none."""
    if index >= len(results):
        return 0
    found = results[index]
    return int(found.error.code if hasattr(found, "error") else found.code)


def _created(request: Any, reply: Any) -> Iterator[dict[str, object]]:
    for i, topic in enumerate(request.topics):
        yield {
            "type": "topic",
            "resource": topic.name,
            "partitions": reply.topics[i].partition_count if i < len(reply.topics) else None,
            "configs": ",".join(f"{key}={value}" for key, value in sorted(topic.configs.items())),
            "code": _code(reply.topics, i),
        }


def _deleted(request: Any, reply: Any) -> Iterator[dict[str, object]]:
    for i, topic in enumerate(request.topics):
        name = topic.name or (reply.topics[i].name if i < len(reply.topics) else "")
        yield {
            "type": "topic",
            "resource": name or topic.topic_id.hex(),
            "code": _code(reply.topics, i),
        }


def _more_partitions(request: Any, reply: Any) -> Iterator[dict[str, object]]:
    for i, topic in enumerate(request.topics):
        yield {
            "type": "topic",
            "resource": topic.name,
            "partitions": topic.total_count,
            "code": _code(reply.topics, i),
        }


_CONFIG_SIGNS: Final = {api.CONFIG_OPERATION_SET: "=", api.CONFIG_OPERATION_APPEND: "+="}


def _configs(request: Any, reply: Any) -> Iterator[dict[str, object]]:
    for i, resource in enumerate(request.resources):
        said = [
            f"{c.key}{_CONFIG_SIGNS.get(c.operation, '-=')}{c.value}" if c.HasField("value") else f"-{c.key}"
            for c in resource.changes
        ]
        yield {
            "type": resource.resource_type,
            "resource": resource.resource_name,
            "configs": ",".join(said),
            "all_others_removed": resource.replace_all or None,
            "code": _code(reply.results, i),
        }


def _elected(request: Any, reply: Any) -> Iterator[dict[str, object]]:
    yield {
        "type": "cluster",
        "operation": "elect leaders" + (", unclean" if request.unclean else ""),
        "resource": ",".join(f"{p.topic_id.hex()}-{p.partition}" for p in request.partitions) or "all",
        "count": reply.changed,
    }


def _reassigned(request: Any, reply: Any) -> Iterator[dict[str, object]]:
    for i, one in enumerate(request.reassignments):
        yield {
            "type": "partition",
            "resource": f"{one.topic}-{one.partition}",
            "replicas": ",".join(map(str, one.replicas)) or "cancelled",
            "code": _code(reply.results, i),
        }


def _unregistered(request: Any, reply: Any) -> Iterator[dict[str, object]]:
    del reply
    yield {"type": "node", "operation": "forget", "resource": str(request.node_id)}


def _registered_node(request: Any, reply: Any) -> Iterator[dict[str, object]]:
    yield {"type": "node", "operation": "register", "resource": str(reply.node_id or request.node_id)}


def _registered_gateway(request: Any, reply: Any) -> Iterator[dict[str, object]]:
    del reply
    yield {"type": "gateway", "operation": "register", "resource": request.gateway_id}


def _replaced(request: Any, reply: Any) -> Iterator[dict[str, object]]:
    yield {
        "type": "controller",
        "operation": "replace",
        "resource": str(request.controller_id),
        "old_directory": reply.old_directory_id.hex(),
        "new_directory": reply.new_directory_id.hex(),
    }


def _features(request: Any, reply: Any) -> Iterator[dict[str, object]]:
    for i, update in enumerate(request.updates):
        yield {
            "type": "feature",
            "resource": update.name,
            "level": update.level,
            "code": _code(reply.results, i),
        }


def _users(request: Any, reply: Any) -> Iterator[dict[str, object]]:
    names = {int(each): each.mechanism_name for each in ScramMechanism}
    for i, change in enumerate(request.changes):
        yield {
            "type": "user",
            "operation": "remove" if change.remove else "set",
            "resource": change.user,
            "mechanism": names.get(change.mechanism, str(change.mechanism)),
            "iterations": change.iterations or None,
            "code": _code(reply.results, i),
        }


def _acls(request: Any, reply: Any) -> Iterator[dict[str, object]]:
    for i, row in enumerate(request.add):
        yield {"type": "acl", "operation": "add", **_acl(row), "code": _code(reply.added, i)}
    for removed in reply.removed:
        for row in removed.acls:
            yield {"type": "acl", "operation": "remove", **_acl(row), "code": removed.error.code}


def _acl(row: Any) -> dict[str, object]:
    kind = from_code(ResourceType, row.resource_type).name.lower()
    pattern = from_code(PatternType, row.pattern_type).name.lower()
    permission = from_code(Permission, row.permission).name.lower()
    operation = from_code(AclOperation, row.operation).name.lower()
    return {
        "resource": f"{kind}:{row.resource_name}",
        "rule": f"{permission} {row.principal} {operation} from {row.host}, {pattern}",
    }


def _quotas(request: Any, reply: Any) -> Iterator[dict[str, object]]:
    for i, change in enumerate(request.changes):
        entity = [
            f"{kind}:{getattr(change, field) or '<default>'}"
            for field, kind in (("user", "user"), ("client_id", "client-id"), ("ip", "ip"))
            if change.HasField(field)
        ]
        said = [f"{v.key}={v.value:g}" if v.HasField("value") else f"-{v.key}" for v in change.values]
        yield {
            "type": "quota",
            "resource": ",".join(entity),
            "configs": ",".join(said),
            "code": _code(reply.results, i),
        }


def _refused_certificates(request: Any, reply: Any) -> Iterator[dict[str, object]]:
    for change in request.changes:
        yield {
            "type": "certificate",
            "operation": "allow" if change.removed else "refuse",
            "resource": change.serial,
            "reason": change.reason,
            "code": reply.error.code,
        }


def _operation_started(request: Any, reply: Any) -> Iterator[dict[str, object]]:
    asked = request.request.parameters
    controllers = [f"controller {asked.controller_id}"] if asked.controller_id else []
    about = [*map(str, asked.node_ids), *controllers, *asked.topics]
    began = reply.operation.record.operation_id
    yield {
        "type": "operation",
        "operation": request.request.kind,
        "resource": str(began) if began else ",".join(about) or "all",
        "moves": reply.plan.totals.moves,
        "allowed_gates": ",".join(request.request.allowed_gates) or None,
    }


def _operation_controlled(request: Any, reply: Any) -> Iterator[dict[str, object]]:
    del reply
    known = operations_pb2.OperationControl.DESCRIPTOR.values_by_number.get(request.control)
    name = str(request.control) if known is None else known.name
    yield {
        "type": "operation",
        "operation": name.removeprefix("OPERATION_CONTROL_").lower(),
        "resource": str(request.operation_id),
    }


def _recovered(request: Any, reply: Any) -> Iterator[dict[str, object]]:
    del request
    for topic in reply.topics:
        yield {
            "type": "topic",
            "operation": "recover",
            "resource": topic.name,
            "partitions": len(topic.partitions),
            "code": topic.error.code,
        }


CHANGES: Final[dict[str, Changes]] = {
    "CreateTopics": _created,
    "DeleteTopics": _deleted,
    "CreatePartitions": _more_partitions,
    "AlterConfigs": _configs,
    "ElectLeaders": _elected,
    "AlterReassignments": _reassigned,
    "UnregisterNode": _unregistered,
    "RegisterNode": _registered_node,
    "RegisterGateway": _registered_gateway,
    "ReplaceController": _replaced,
    "UpdateFeatures": _features,
    "AlterUserCredentials": _users,
    "AlterAcls": _acls,
    "AlterQuotas": _quotas,
    "AlterRefusedCertificates": _refused_certificates,
    "StartOperation": _operation_started,
    "ControlOperation": _operation_controlled,
    "RecoverTopics": _recovered,
}
"""The methods that change something for which somebody asked."""
