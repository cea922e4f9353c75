"""Imports every module of some distributions, and all that they import within functions too; run as a program.

What is imported only when it is needed (at a terminal, for a certificate) would be missed by running some commands.
What stands under `if TYPE_CHECKING` is left out. Copied to where it is run: it imports nothing of the checkout.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Modules, and the name that is taken from each, or an empty one."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, alias.name) for alias in node.names)
        else:
            yield from imported(node)


def problem(module: str, name: str) -> str:
    """Why that import would fail; empty where it would not."""
    try:
        found = importlib.import_module(module)
        if name and not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> int:
    """Exit code 1 when something could not be imported, or came from outside of this environment."""
    problems: dict[str, str] = {}
    modules = 0
    for distribution in sys.argv[1:]:
        for file in importlib.metadata.files(distribution) or []:
            if file.suffix != ".py" or file.name == "__main__.py":
                continue
            modules += 1
            name = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
            problems[name] = problem(name, "")
            origin = str(sys.modules[name].__file__) if name in sys.modules else ""
            if not problems[name] and not origin.startswith(sys.prefix):
                problems[name] = f"is {origin}"
            for module, member in imported(ast.parse(Path(str(file.locate())).read_bytes())):
                problems[f"{name} imports {module} {member}".rstrip()] = problem(module, member)
    told = [f"{what}: {why}" for what, why in problems.items() if why]
    print(*told, f"{modules} modules, {len(problems)} imports, {len(told)} failed", sep="\n")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
