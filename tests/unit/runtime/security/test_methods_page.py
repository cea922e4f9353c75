"""The table of docs/certificates.md is that of the code: one row per method of every internal service."""

from __future__ import annotations

from pathlib import Path

from penstock_proto.v1 import controller_pb2, storage_pb2
from penstock_runtime.security.methods import ADMIN, CONTROLLER, GATEWAY, METHOD_ROLES, STORAGE_NODE
from support.role_methods import BOUND, SAYS_OF_ANOTHER, methods, names_a_caller

PAGE = Path(__file__).parents[4] / "docs" / "certificates.md"
ROLES = (CONTROLLER, STORAGE_NODE, GATEWAY, ADMIN)


def page_table() -> str:
    lines = [f"| method | {' | '.join(ROLES)} |", "|---" * (len(ROLES) + 1) + "|"]
    for module in (controller_pb2, storage_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                full = f"/{service.full_name}/{method.name}"
                allowed = METHOD_ROLES[full]
                cells = [
                    "refused" if role not in allowed else "as itself" if BOUND.get(full) == role else "yes"
                    for role in ROLES
                ]
                lines.append(f"| {service.name}.{method.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_page_has_the_table_of_the_code() -> None:
    assert page_table() in PAGE.read_text(), page_table()


def test_a_method_that_says_who_calls_is_bound_or_said_to_be_none() -> None:
    """A new message with an id of a node or gateway asks: whose?"""
    single = {STORAGE_NODE}, {GATEWAY}
    found = {name for name, method in methods().items() if names_a_caller(method)}
    assert found == BOUND.keys() | SAYS_OF_ANOTHER.keys()
    for name in BOUND:
        assert METHOD_ROLES[name] in single, name
