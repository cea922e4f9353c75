"""`penstock acl`: who may do what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from penstock.cli import security_wire
from penstock.cli.kafka import bootstrap_option, check_reachable, json_option
from penstock.cli.output import note, print_facts, print_json, print_table
from penstock.cli.security_wire import Acl, AclFilter
from penstock.errors import CommandError, ExitCode

RESOURCES: Final = {"topic": 2, "group": 3, "cluster": 4, "transactional-id": 5}
OPERATIONS: Final = {
    "all": 2,
    "read": 3,
    "write": 4,
    "create": 5,
    "delete": 6,
    "alter": 7,
    "describe": 8,
    "cluster-action": 9,
    "describe-configs": 10,
    "alter-configs": 11,
    "idempotent-write": 12,
}
_PERMISSIONS: Final = {"deny": 2, "allow": 3}
_ANY, _MATCH, _LITERAL, _PREFIXED = 1, 2, 3, 4
_CLUSTER_NAME: Final = "kafka-cluster"

_COLUMNS: Final = ("permission", "principal", "host", "operation", "resource", "pattern", "name")


@click.group("acl")
def COMMAND() -> None:  # noqa: N802 (the name that cli.main looks for)
    """ACLs: who may do what, from where.

    A DENY that applies decides; else an ALLOW that applies; else the answer is no. READ, WRITE, DELETE and ALTER
    allow DESCRIBE too, ALTER_CONFIGS allows DESCRIBE_CONFIGS.
    """


def _name_of(codes: dict[str, int], code: int) -> str:
    return next((name for name, known in codes.items() if known == code), str(code))


def _row(acl: Acl) -> dict[str, Any]:
    return {
        "permission": _name_of(_PERMISSIONS, acl.permission),
        "principal": acl.principal,
        "host": acl.host,
        "operation": _name_of(OPERATIONS, acl.operation),
        "resource": _name_of(RESOURCES, acl.resource_type),
        "pattern": "prefixed" if acl.pattern_type == _PREFIXED else "literal",
        "name": acl.resource_name,
    }


def _resource(word: str) -> tuple[int, str]:
    """Type and name of KIND:NAME."""
    kind, colon, name = word.partition(":")
    if kind == "cluster" and name in ("", _CLUSTER_NAME):
        return RESOURCES[kind], _CLUSTER_NAME
    if kind not in RESOURCES or kind == "cluster" or not colon or not name:
        kinds = ", ".join(f"{kind}:NAME" for kind in RESOURCES if kind != "cluster")
        raise CommandError(f"resource {word!r}: write it as {kinds} or cluster", ExitCode.USAGE)
    return RESOURCES[kind], name


def _operations(words: str) -> list[int]:
    codes = []
    for word in words.split(","):
        code = OPERATIONS.get(word.strip().lower().replace("_", "-"))
        if code is None:
            raise CommandError(
                f"operation {word!r} is not known: there are {', '.join(OPERATIONS)}", ExitCode.USAGE
            )
        codes.append(code)
    return codes


def _principal(word: str) -> str:
    if ":" not in word:
        raise CommandError(f"principal {word!r}: write it as User:{word}", ExitCode.USAGE)
    return word


@COMMAND.command()
@click.argument("principal")
@click.argument("operations", metavar="OPERATION[,...]")
@click.argument("resource", metavar="KIND:NAME")
@click.option("--deny", is_flag=True, help="Forbid it, whatever else allows it.")
@click.option("--prefixed", is_flag=True, help="NAME is the beginning of names.")
@click.option("--host", default="*", show_default=True, help="Client's address; * is every address.")
@bootstrap_option
def add(
    principal: str, operations: str, resource: str, deny: bool, prefixed: bool, host: str, bootstrap: str
) -> None:
    """Allow a principal something, or deny it. A rule that is there already is no error.

    PRINCIPAL is User:NAME, or 'User:*' for everybody; KIND is topic, group, cluster or transactional-id, and
    the name * every resource of the kind.

    \b
    Examples:
      penstock acl add User:alice read,write topic:flights
      penstock acl add User:alice read group:billing- --prefixed
      penstock acl add 'User:*' delete 'topic:*' --deny
      penstock acl add User:ops alter,describe cluster --host 192.0.2.7
    """
    kind, name = _resource(resource)
    pattern = _PREFIXED if prefixed else _LITERAL
    who, permission = _principal(principal), _PERMISSIONS["deny" if deny else "allow"]
    acls = [Acl(kind, name, pattern, who, host, code, permission) for code in _operations(operations)]
    check_reachable(bootstrap)
    for acl, reason in zip(acls, security_wire.create_acls(bootstrap, acls), strict=True):
        if reason:
            raise CommandError(reason)
        note(f"added: {_words(acl)}")


def _filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.option("--principal", metavar="User:NAME", help="Those of one principal."),
        click.option("--resource", metavar="KIND[:NAME]", help="Those with that pattern."),
        click.option(
            "--applying", is_flag=True, help="Those that apply to --resource: by name, prefix and *."
        ),
        click.option("--operation", help="Those for one operation."),
        click.option("--permission", type=click.Choice(list(_PERMISSIONS)), help="Those that do that."),
        click.option("--host", help="Those for that address, or *."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _filter(
    principal: str | None,
    resource: str | None,
    applying: bool,
    operation: str | None,
    permission: str | None,
    host: str | None,
) -> AclFilter:
    kind, name = _ANY, None
    if resource in RESOURCES and resource != "cluster":
        kind = RESOURCES[resource]
    elif resource is not None:
        kind, name = _resource(resource)
    if applying and name is None:
        raise CommandError("--applying needs --resource KIND:NAME", ExitCode.USAGE)
    code = _ANY
    if operation is not None:
        (code, *more) = _operations(operation)
        if more:
            raise CommandError("--operation takes one operation", ExitCode.USAGE)
    return AclFilter(
        kind,
        name,
        _MATCH if applying else _ANY,
        None if principal is None else _principal(principal),
        host,
        code,
        _PERMISSIONS[permission] if permission else _ANY,
    )


@COMMAND.command("list")
@_filter_options
@bootstrap_option
@json_option
def list_acls(
    principal: str | None,
    resource: str | None,
    applying: bool,
    operation: str | None,
    permission: str | None,
    host: str | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """List rules: all, or those that every option given asks for.

    \b
    Examples:
      penstock acl list
      penstock acl list --principal User:alice
      penstock acl list --resource topic:flights --applying
      penstock acl list --permission deny --json
    """
    wanted = _filter(principal, resource, applying, operation, permission, host)
    check_reachable(bootstrap)
    _show(security_wire.describe_acls(bootstrap, wanted), as_json)


@COMMAND.command()
@_filter_options
@click.option("--all", "everything", is_flag=True, help="All rules there are.")
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@bootstrap_option
@json_option
def remove(
    principal: str | None,
    resource: str | None,
    applying: bool,
    operation: str | None,
    permission: str | None,
    host: str | None,
    everything: bool,
    dry_run: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Remove the rules that every option given asks for, and show them.

    \b
    Examples:
      penstock acl remove --principal User:alice --resource topic:flights --dry-run
      penstock acl remove --principal User:alice
      penstock acl remove --resource group --operation delete --permission deny
    """
    wanted = _filter(principal, resource, applying, operation, permission, host)
    if (wanted == AclFilter()) != everything:
        raise CommandError(
            "say which rules, or --all for every one"
            if not everything
            else "--all takes no other choice of rules",
            ExitCode.USAGE,
        )
    check_reachable(bootstrap)
    if dry_run:
        _show(security_wire.describe_acls(bootstrap, wanted), as_json)
        return
    gone = security_wire.delete_acls(bootstrap, wanted)
    _show(gone, as_json)
    note(f"removed {len(gone)} rule{'' if len(gone) == 1 else 's'}")


@COMMAND.command()
@click.argument("principal")
@click.argument("operation")
@click.argument("resource", metavar="KIND:NAME")
@click.option("--host", default="", help="The client's address; by default one that no rule names.")
@bootstrap_option
@json_option
def test(principal: str, operation: str, resource: str, host: str, bootstrap: str, as_json: bool) -> None:
    """Say whether a principal may do something, and which rule decides.

    By the rules of the cluster alone: what the settings of its processes say (super users, and what holds where
    no rule is) no request tells.

    \b
    Examples:
      penstock acl test User:alice write topic:flights
      penstock acl test User:bob read group:billing --host 192.0.2.7 --json
    """
    kind, name = _resource(resource)
    (code, *more) = _operations(operation)
    if more or code == OPERATIONS["all"]:
        raise CommandError("say one operation, and not all", ExitCode.USAGE)
    who = _principal(principal)
    check_reachable(bootstrap)
    acls = security_wire.describe_acls(bootstrap, AclFilter(resource_type=kind))
    allowed, rule = _decide(acls, who, code, kind, name, host)
    shown = None if rule is None else _row(rule)
    if as_json:
        print_json({"allowed": allowed, "rule": shown})
        return
    print_facts(
        [
            ("answer", "allowed" if allowed else "denied"),
            ("rule", "none applies" if rule is None else _words(rule)),
        ]
    )


def _decide(
    acls: Sequence[Acl], principal: str, operation: int, kind: int, name: str, host: str
) -> tuple[bool, Acl | None]:
    """The answer of the same decision as the cluster's, and the rule that made it."""
    try:
        from penstock_core.security.acl import AclOperation, ResourceType, read_binding
        from penstock_core.security.acl_decision import AclDecider
        from penstock_core.security.acl_set import AclSet
        from penstock_core.security.principal import parse_principal
    except ImportError as error:
        raise CommandError(
            f"rules are judged by penstock-core ({error.name} is not installed): pip install 'penstock[native]'"
        ) from None
    of_binding = {
        read_binding(
            acl.resource_type,
            acl.pattern_type,
            acl.resource_name,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission,
        ): acl
        for acl in acls
    }
    decision = AclDecider(AclSet(of_binding)).explain(
        parse_principal(principal), host, AclOperation(operation), ResourceType(kind), name
    )
    return decision.allowed, None if decision.entry is None else of_binding[decision.entry]


def _words(acl: Acl) -> str:
    row = _row(acl)
    prefix = "prefixed " if acl.pattern_type == _PREFIXED else ""
    return (
        f"{row['permission']} {row['principal']} from {row['host']} {row['operation']} on "
        f"{prefix}{row['resource']}:{row['name']}"
    )


def _show(acls: Sequence[Acl], as_json: bool) -> None:
    rows = sorted((_row(acl) for acl in acls), key=lambda row: [str(row[c]) for c in reversed(_COLUMNS)])
    if as_json:
        print_json(rows)
    elif rows:
        print_table(_COLUMNS, [[row[column] for column in _COLUMNS] for row in rows])
    else:
        note("there are no such rules")
