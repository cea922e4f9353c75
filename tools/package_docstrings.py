"""The tables of contents in the docstrings of packages: what lacks, and a first draft of it.

The docstring of each package under `libs/*/src` and `services/*/src` names each module and package in it, in
lines of their own:

    `frames`   headers of requests and responses
    `codec`    every message that isn't written by hand

A test holds them to it (tests/unit/docs/test_package_docstrings.py).

    .venv/bin/python tools/package_docstrings.py            what lacks or is gone, by package; exit 1 if anything does
    .venv/bin/python tools/package_docstrings.py --write    put it in: each module's first sentence, to be edited
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
_ENTRY: Final = re.compile(r"^(`\w+`(?:, `\w+`)*) {2,}\S")
"""Names, at least two spaces, and what they are: prose that begins with a name has one."""
_WIDTH: Final = 110
_PROPER: Final = frozenset({"Fetch", "Kafka", "Kafka's", "Metadata", "Penstock's", "Produce", "Raft"})


def packages(root: Path = ROOT) -> dict[str, Path]:
    """Every package by its dotted name: its `__init__.py`."""
    found = {}
    for source in sorted([*root.glob("libs/*/src"), *root.glob("services/*/src")]):
        for init in sorted(source.rglob("__init__.py")):
            found[".".join(init.parent.relative_to(source).parts)] = init
    return found


def contents(init: Path) -> dict[str, Path]:
    """Modules and packages of a package by name; the file with their docstring."""
    found = {}
    for path in sorted(init.parent.iterdir()):
        if path.suffix == ".py" and not path.stem.startswith("__"):
            found[path.stem] = path
        elif (path / "__init__.py").is_file():
            found[path.name] = path / "__init__.py"
    return found


def parse(docstring: str) -> tuple[dict[str, str], list[str]]:
    """(text of each name in backticks that an entry begins with, all other lines)."""
    said: dict[str, str] = {}
    others: list[str] = []
    names: list[str] = []
    for line in docstring.splitlines():
        if entry := _ENTRY.match(line):
            names = re.findall(r"`(\w+)`", entry[1])
            said.update(dict.fromkeys(names, line[len(entry[1]) :].strip()))
        elif names and line.startswith("  "):
            # Goes on with the entry above.
            said.update({name: f"{said[name]} {line.strip()}" for name in names})
        else:
            names = []
            others.append(line)
    return said, others


def docstring_of(path: Path) -> str:
    """A module's docstring, "" when it has none."""
    return ast.get_docstring(ast.parse(path.read_text())) or ""


def differences(init: Path) -> tuple[list[str], list[str]]:
    """(what a package has and its docstring does not name, what it names and the package has not)."""
    there, said = contents(init).keys(), parse(docstring_of(init))[0].keys()
    return sorted(there - said), sorted(said - there)


def summary(path: Path) -> str:
    """The first sentence of a module's docstring, as an entry has it."""
    text = " ".join(docstring_of(path).partition("\n\n")[0].split())
    first = re.split(r"[.;](?:\s|$)", text)[0]
    head, colon, _ = first.partition(":")
    if colon and len(head.split()) > 3 and head.count("(") == head.count(")"):
        first = head
    begin = first.partition(" ")[0]
    return first if begin in _PROPER or not begin.istitle() else first[:1].lower() + first[1:]


def entries(init: Path) -> Iterator[str]:
    """Lines for everything in a package: those that its docstring has, drafts for what lacks."""
    kept, _ = parse(docstring_of(init))
    there = contents(init)
    width = max(map(len, there), default=0) + 3
    for name, path in there.items():
        label = f"`{name}`".ljust(width)
        text = kept.get(name) or summary(path) or "?"
        words, line = text.split(), label
        for word in words:
            if len(line) + 1 + len(word) > _WIDTH:
                yield line
                line = " " * width
            line += f" {word}"
        yield line


def write(init: Path) -> None:
    """Bring a package's docstring up to date."""
    source = init.read_text()
    _, lines = parse(docstring_of(init))
    head, _, rest = "\n".join(lines).strip().partition("\n\n")
    rest = re.sub(r"\n{3,}", "\n\n", rest).strip()
    new = "\n\n".join(filter(None, (head, "\n".join(entries(init)), rest)))
    quoted = f'"""{new}\n"""' if "\n" in new else f'"""{new}"""'
    if not source.strip():
        init.write_text(f'"""?\n\n{new.strip()}\n"""\n')
        return
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.Expr)
    assert body.end_lineno is not None
    after = source.splitlines(keepends=True)[body.end_lineno :]
    init.write_text(quoted + "\n" + "".join(after))


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 when something lacks and is not written."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="put in what lacks, take out what is gone")
    parser.add_argument(
        "names", nargs="*", metavar="PACKAGE", help="these alone, and what is in them; all if none"
    )
    options = parser.parse_args(arguments)
    lacking = 0
    for name, init in packages().items():
        if options.names and not any(name == n or name.startswith(f"{n}.") for n in options.names):
            continue
        missing, gone = differences(init)
        if not missing and not gone:
            continue
        lacking += 1
        print(f"{name} ({init.relative_to(ROOT)})")
        for module in missing:
            print(f"  lacks   `{module}`  {summary(contents(init)[module])}")
        for module in gone:
            print(f"  is gone `{module}`")
        if options.write:
            write(init)
    return 1 if lacking and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())
