"""Write constraints.txt, and from it what each service needs to run alone.

constraints.txt pins every third-party package, with hashes, for the packages of this
repository and the `dev` group of the root pyproject.toml, resolved together.
`services/<role>/requirements.txt` is the part of it that one service needs, `client/requirements.txt`
what the command line's image does, `client/requirements-pytest.txt` what `penstock[pytest]` does,
`spark/requirements.txt` what Spark's image does, `spark/requirements-iceberg.txt` what `penstock-spark[iceberg]` does:
derived, never edited; a test proves that they are current.
`proto/protoc.txt` pins the compiler of the stubs, the group `protoc`, which stands apart (tools/generate_protos.py).

    .venv/bin/python tools/lock.py             resolve again, keeping versions where possible
    .venv/bin/python tools/lock.py --upgrade   take the newest versions
    .venv/bin/python tools/lock.py --derive    only write the derived files again
    .venv/bin/python tools/lock.py --check     exit 1 when one of those is stale
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
DERIVED = {
    "services/controller/requirements.txt": ("penstock-controller", ""),
    "services/storage-node/requirements.txt": ("penstock-storage-node", ""),
    "services/gateway/requirements.txt": ("penstock-gateway", ""),
    "client/requirements.txt": ("penstock", "cert,native"),
    "client/requirements-pytest.txt": ("penstock", "pytest"),
    "spark/requirements.txt": ("penstock-spark + penstock", ""),
    "spark/requirements-iceberg.txt": ("penstock-spark", "iceberg"),
}
"""Files, and the packages and extras that each is for."""
COMPILER = ROOT / "proto" / "protoc.txt"
COMPILER_HEADER = (
    "# The group `protoc` of pyproject.toml, by tools/lock.py; alone, without what it asks for.\n"
)
HEADER = "# Derived from constraints.txt by tools/lock.py --derive; not edited by hand.\n"


def project_tables() -> dict[Path, dict[str, list[str]]]:
    """Requirements of every package of this repository, by its folder."""
    tables: dict[Path, dict[str, list[str]]] = {}
    for pyproject in sorted(ROOT.glob("*/**/pyproject.toml")):
        if ".venv" in pyproject.parts:
            continue
        document = tomllib.loads(pyproject.read_text())
        project = document["project"]
        extras = [r for group in project.get("optional-dependencies", {}).values() for r in group]
        tables[pyproject.parent] = {
            "name": [project["name"]],
            "runtime": project["dependencies"],
            "other": [*extras, *document["build-system"]["requires"]],
        }
    return tables


def dependency_group(name: str) -> list[str]:
    """A group of the root pyproject.toml."""
    groups: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    return groups[name]


def third_party_requirements() -> list[str]:
    """Requirements of all packages and of the dev group that are not our own packages."""
    tables = project_tables().values()
    own = {table["name"][0] for table in tables}
    wanted = {r for table in tables for r in (*table["runtime"], *table["other"])}
    wanted.update(dependency_group("dev"))
    return sorted(r for r in wanted if Requirement(r).name not in own)


def pinned_blocks(path: Path = CONSTRAINTS) -> dict[str, str]:
    """The lines of constraints.txt, or of another file of its form, that pin one package, by its canonical name."""
    blocks: dict[str, str] = {}
    for block in re.split(r"\n(?=\S)", path.read_text().strip()):
        if "==" in block:
            blocks[canonicalize_name(block.split("==")[0].strip())] = block.rstrip() + "\n"
    return blocks


def closure(packages: str, extra: str) -> set[str]:
    """The packages and all that they need with that extra, by the metadata of the installed ones."""
    seen: set[str] = set()
    waiting = [(package, each) for package in packages.split(" + ") for each in ("", *extra.split(","))]
    while waiting:
        name, extra = waiting.pop()
        key = canonicalize_name(name)
        if (mark := f"{key}[{extra}]") in seen:
            continue
        seen.add(mark)
        for text in importlib.metadata.requires(name) or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                waiting.extend((requirement.name, e) for e in ("", *requirement.extras))
    return {mark.split("[")[0] for mark in seen}


def requirements(package: str, extra: str) -> str:
    """Text of a derived file."""
    own = {table["name"][0] for table in project_tables().values()}
    needed = closure(package, extra) - {canonicalize_name(name) for name in own}
    # setuptools builds our own packages where they are installed from source.
    needed |= closure("setuptools", "") | closure("wheel", "")
    blocks = pinned_blocks()
    return HEADER + "".join(blocks[name] for name in sorted(needed))


def compiler_is_stale() -> bool:
    """Whether proto/protoc.txt pins something else than the group says."""
    pinned = {name: block.split()[0] for name, block in pinned_blocks(COMPILER).items()}
    return pinned != {Requirement(text).name: text for text in dependency_group("protoc")}


def derive(*, check: bool) -> int:
    stale = []
    if check and compiler_is_stale():
        print(f"stale, run tools/lock.py: {COMPILER.relative_to(ROOT)}")
        return 1
    for name, wanted in DERIVED.items():
        path = ROOT / name
        text = requirements(*wanted)
        if not path.exists() or path.read_text() != text:
            stale.append(str(path.relative_to(ROOT)))
            if not check:
                path.write_text(text)
    if check and stale:
        print("stale, run tools/lock.py --derive:", ", ".join(stale))
        return 1
    return 0


def resolve(requirements: list[str], output: Path, *, upgrade: bool) -> None:
    """Pin them, and what they ask for, in a file, where its pins stay as far as they can."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "requirements.in"
        source.write_text("\n".join(requirements) + "\n")
        command = [
            *(sys.executable, "-m", "piptools", "compile", "--quiet", "--generate-hashes", "--strip-extras"),
            *("--allow-unsafe", "--no-emit-index-url", "--no-emit-trusted-host", "--no-emit-find-links"),
            *("--no-emit-options", "--no-header", "--no-annotate"),
            *(["--upgrade"] if upgrade else []),
            *("--output-file", str(output), str(source)),
        ]
        subprocess.run(command, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    parser.add_argument("--derive", action="store_true", help="only write the derived files")
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    arguments = parser.parse_args()
    if arguments.check or arguments.derive:
        return derive(check=arguments.check)
    resolve(third_party_requirements(), CONSTRAINTS, upgrade=arguments.upgrade)
    group = dependency_group("protoc")
    with tempfile.TemporaryDirectory() as scratch:
        resolved = Path(scratch) / "protoc.txt"
        resolve(group, resolved, upgrade=False)
        blocks = pinned_blocks(resolved)
    COMPILER.write_text(COMPILER_HEADER + "".join(blocks[Requirement(text).name] for text in group))
    return derive(check=False)


if __name__ == "__main__":
    sys.exit(main())
