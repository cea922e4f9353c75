"""Write constraints.txt: exact versions and hashes of everything third-party.

Reads the dependencies of every package of this repository and the `dev` group of
the root pyproject.toml, and resolves them together, so that one file pins them all.

    python tools/lock.py             resolve again, keeping today's versions where possible
    python tools/lock.py --upgrade   take the newest versions
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def third_party_requirements() -> list[str]:
    """Requirements of all packages and of the dev group that are not our own packages."""
    wanted: set[str] = set()
    own: set[str] = set()
    for pyproject in sorted(ROOT.glob("*/**/pyproject.toml")):
        project = tomllib.loads(pyproject.read_text())["project"]
        own.add(project["name"])
        wanted.update(project["dependencies"])
        for extra in project.get("optional-dependencies", {}).values():
            wanted.update(extra)
        build = tomllib.loads(pyproject.read_text())["build-system"]
        wanted.update(build["requires"])
    wanted.update(tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["dev"])
    return sorted(r for r in wanted if r.split("==")[0].split(">")[0].split("[")[0] not in own)


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "requirements.in"
        source.write_text("\n".join(third_party_requirements()) + "\n")
        return subprocess.run(
            [
                *(
                    sys.executable,
                    "-m",
                    "piptools",
                    "compile",
                    "--quiet",
                    "--generate-hashes",
                    "--strip-extras",
                ),
                *("--allow-unsafe", "--no-emit-index-url", "--no-emit-trusted-host", "--no-emit-find-links"),
                *("--no-emit-options", "--no-header", "--no-annotate"),
                *("--output-file", str(ROOT / "constraints.txt"), *sys.argv[1:], str(source)),
            ],
            check=False,
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
