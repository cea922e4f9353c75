"""Generate the Python stubs of `proto/` (run it after every change of a .proto file).

Stubs refuse a protobuf or a gRPC older than their compiler, and Spark's images have those that PySpark asks for. So
the compiler is as old as these: of the group `protoc` of the root pyproject.toml, pinned in proto/protoc.txt, and in a
folder of its own, since its metadata exclude the newer protobuf beside it. Newer ones run what it writes: protobuf
promises as much up to its next major version (protobuf.dev, "Cross-Version Runtime Guarantee"), gRPC for later ones.

python tools/generate_protos.py            write the stubs
python tools/generate_protos.py --check    fail when the committed ones are stale
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO_DIR = ROOT / "proto" / "penstock"
PACKAGE_DIR = ROOT / "proto" / "src" / "penstock_proto"
PLUGINS = ("protoc-gen-mypy", "protoc-gen-mypy_grpc")
COMPILER = Path(sys.prefix) / "protoc"
"""Where `make setup` has put proto/protoc.txt. It is a program in C++ and needs no protobuf of Python."""


def generate(out: Path) -> None:
    """Write stubs for every .proto file below `out`/penstock_proto/v1."""
    sources = sorted((PROTO_DIR / "v1").glob("*.proto"))
    # The virtual root makes the module path penstock_proto.v1 while the files
    # stay in proto/penstock/v1, so that no generated import needs a patch.
    if not COMPILER.is_dir():
        raise SystemExit(f"no compiler in {COMPILER}; run make setup")
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc"),
        f"-Ipenstock_proto={PROTO_DIR}",
        # By path: the environment need not be activated.
        *(f"--plugin={name}={Path(sys.executable).parent / name}" for name in PLUGINS),
        f"--python_out={out}",
        f"--grpc_python_out={out}",
        f"--mypy_out={out}",
        f"--mypy_grpc_out={out}",
        *(f"penstock_proto/v1/{source.name}" for source in sources),
    ]
    environment = os.environ | {"PYTHONPATH": str(COMPILER)}
    if subprocess.run(command, env=environment, check=False).returncode != 0:
        raise SystemExit("protoc failed; its message is above")


def stale_files() -> list[str]:
    """Names of committed stubs that differ from freshly generated ones."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = {p.name: p.read_bytes() for p in Path(scratch).rglob("*_pb2*")}
    committed = {p.name: p.read_bytes() for p in (PACKAGE_DIR / "v1").glob("*_pb2*")}
    return sorted(n for n in fresh.keys() | committed.keys() if fresh.get(n) != committed.get(n))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    if parser.parse_args().check:
        stale = stale_files()
        if stale:
            print("stale stubs, run tools/generate_protos.py:", ", ".join(stale))
        return 1 if stale else 0
    generate(PACKAGE_DIR.parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
