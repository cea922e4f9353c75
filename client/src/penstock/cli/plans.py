"""What people are shown of a plan: its moves, bytes, time and gates. Of documents, as `--json` has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from penstock.cli.output import print_facts, print_table
from penstock.cli.rates import rate_text, size_text, span_text
from penstock.text import harmless

Json = dict[str, Any]

MOVES_SHOWN: Final = 20
NODES_SHOWN: Final = 50
ITEMS_SHOWN: Final = 5
TOPICS_SHOWN: Final = 5


def show_plan(plan: Json) -> None:
    """The whole plan on stdout, long tables shortened."""
    print_facts(plan_facts(plan))
    moves, nodes = plan["moves"], changed_nodes(plan)
    if plan["steps"]:
        click.echo()
        print_table(
            ("step", "process", "role", "action"),
            [[n, s["name"], s["role"], s["action"]] for n, s in enumerate(plan["steps"], 1)],
        )
    if moves:
        click.echo()
        print_table(("topic", "partition", "from", "to", "bytes"), move_rows(moves[:MOVES_SHOWN]))
        _say_rest(len(moves) - MOVES_SHOWN, "move")
    if nodes:
        click.echo()
        print_table(
            ("node", "rack", "replicas", "leaders", "bytes", "disk free"), node_rows(nodes[:NODES_SHOWN])
        )
        _say_rest(len(nodes) - NODES_SHOWN, "node")
    if plan["gates"]:
        click.echo()
        print_table(("gate", "state", "detail"), [gate_row(gate) for gate in plan["gates"]])
    for warning in plan["warnings"]:
        click.echo(f"warning: {harmless(warning)}")


def plan_facts(plan: Json) -> list[tuple[str, object]]:
    """Name and value, in the order to show them."""
    totals = plan["totals"]
    moves: list[tuple[str, object]] = [
        ("moves", totals_text(totals)),
        ("bytes", size_text(totals["bytes"])),
        ("throttle", throttle_text(plan["throttle"])),
        ("time", "not known" if plan["eta_s"] is None else f"about {span_text(plan['eta_s'])}"),
    ]
    return [
        ("plan", f"{plan['plan_id']} of metadata version {plan['metadata_version']}"),
        ("what", f"{plan['kind']} {subject(plan['parameters'])}".strip()),
        *([("steps", counted(len(plan["steps"]), "process", "processes"))] if plan["steps"] else moves),
    ]


def totals_text(totals: Json) -> str:
    """What changes, in numbers."""
    if not any(totals[name] for name in ("moves", "leader_changes")):
        return "none: every partition stays as it is"
    return (
        f"{counted(totals['moves'], 'partition')}: {counted(totals['replicas_added'], 'replica')} made, "
        f"{totals['replicas_removed']:,} removed, {counted(totals['leader_changes'], 'leader')} changed"
    )


def subject(parameters: Json) -> str:
    """What an operation is about, in the order of a sentence."""
    words = []
    if parameters["node_ids"]:
        words.append(_named("node", parameters["node_ids"]))
    if parameters["controller_id"] is not None:
        words.append(f"controller {parameters['controller_id']}")
    if parameters["replacement_node_id"] is not None:
        words.append(f"by node {parameters['replacement_node_id']}")
    if parameters["topics"]:
        words.append(_named("topic", parameters["topics"]))
    if parameters["partitions"]:
        words.append(_named("partition", parameters["partitions"]))
    if parameters["replication_factor"] is not None:
        words.append(f"to {counted(parameters['replication_factor'], 'replica')}")
    if parameters["goals"]:
        words.append(_named("goal", parameters["goals"]))
    if parameters["excluded_node_ids"]:
        words.append(f"without {_named('node', parameters['excluded_node_ids'])}")
    if parameters["roles"]:
        words.append(_named("role", parameters["roles"]))
    if parameters["process_names"]:
        words.append(", ".join(parameters["process_names"]))
    if parameters["level"] is not None:
        words.append(f"to level {parameters['level']}")
    if parameters["max_bytes"] is not None:
        words.append(f"at most {size_text(parameters['max_bytes'])}")
    return " ".join(words)


def throttle_text(throttle: Json) -> str:
    """`auto`, or the rate."""
    rate = throttle["bytes_per_s"]
    if throttle["mode"] == "auto":
        return "auto" if rate is None else f"auto, {rate_text(rate)} now"
    return "none" if rate is None else f"{rate_text(rate)} for each node and direction"


def move_rows(moves: Sequence[Json]) -> list[list[object]]:
    """Cells of moves."""
    return [
        [move["topic"], move["partition"], move["from"], move["to"], size_text(move["bytes"])]
        for move in moves
    ]


def changed_nodes(plan: Json) -> list[Json]:
    """Nodes that gain or lose something."""
    names = ("replicas", "leaders", "bytes")
    return [
        node for node in plan["nodes"] if any(node[name]["before"] != node[name]["after"] for name in names)
    ]


def node_rows(nodes: Sequence[Json]) -> list[list[object]]:
    """Cells of nodes: what each has, and would have."""
    return [
        [
            node["node_id"],
            node["rack"],
            _change(str(node["replicas"]["before"]), str(node["replicas"]["after"])),
            _change(str(node["leaders"]["before"]), str(node["leaders"]["after"])),
            _change(size_text(node["bytes"]["before"]), size_text(node["bytes"]["after"])),
            _change(_size(node["disk_free_bytes"]["before"]), _size(node["disk_free_bytes"]["after"])),
        ]
        for node in nodes
    ]


def gate_row(gate: Json) -> list[object]:
    """Cells of a gate."""
    state = "open" if gate["ok"] else "stops it" if gate["blocking"] else "allowed away"
    return [gate["name"], state, _detail(gate)]


def refusal(plan: Json) -> str | None:
    """Why the plan cannot be carried out, in one line; None where it can."""
    if plan["runnable"]:
        return None
    said = [f"{gate['name']}: {_detail(gate)}" for gate in plan["gates"] if gate["blocking"]]
    return f"refused by {'; '.join(said) or 'the controllers'}; nothing was changed"


def counted(count: int, thing: str, things: str = "") -> str:
    """`1 move`, `2 moves`; `things` where an s does not make them many."""
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"


def _detail(gate: Json) -> str:
    items = gate["items"]
    more = f" and {len(items) - ITEMS_SHOWN} more" if len(items) > ITEMS_SHOWN else ""
    named = f" ({', '.join(items[:ITEMS_SHOWN])}{more})" if items else ""
    return harmless(f"{gate['detail'] or ''}{named}".strip())


def _named(thing: str, names: Sequence[object]) -> str:
    shown = ", ".join(str(name) for name in names[:TOPICS_SHOWN])
    more = f" and {len(names) - TOPICS_SHOWN} more" if len(names) > TOPICS_SHOWN else ""
    return f"{thing}{'' if len(names) == 1 else 's'} {shown}{more}"


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def _size(size_bytes: int | None) -> str:
    return "?" if size_bytes is None else size_text(size_bytes)


def _say_rest(count: int, thing: str) -> None:
    if count > 0:
        click.echo(f"... and {counted(count, thing)} more; --json shows all")
