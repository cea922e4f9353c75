"""Importing the package never fails: Spark imports every module named `pyspark_*` unguarded when it looks for
sources, and one that raises leaves the session without any, others' included."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

HEADER = """
import sys
{before}
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if any(name == gone or name.startswith(gone + ".") for gone in {gone!r}):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
import pyspark_penstock
"""


def run(gone: tuple[str, ...], then: str, before: str = "") -> str:
    code = HEADER.format(gone=gone, before=before) + textwrap.dedent(then)
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


CALLS = """
from pyspark.sql.datasource import DataSource
from pyspark_penstock.errors import PenstockError
from pyspark.sql.types import StructType

assert issubclass(pyspark_penstock.DefaultSource, DataSource)
assert pyspark_penstock.DefaultSource.name() == "penstock"
source = pyspark_penstock.DefaultSource({"gateway": "a:1", "subscribe": "t"})
schema = StructType().add("value", "binary")
said = set()
for call in (source.schema, lambda: source.reader(schema), lambda: source.streamReader(schema).initialOffset()):
    try:
        call()
    except PenstockError as error:
        said.add(str(error))
print("|".join(sorted(said)))
"""


@pytest.mark.parametrize(
    "gone", ["numpy", "grpc", "google_crc32c", "cramjam", "penstock_proto", "penstock_core"]
)
def test_a_missing_wheel_is_one_sentence(gone: str) -> None:
    said = run((gone,), CALLS)
    assert "|" not in said
    assert said.startswith(
        f"penstock-spark needs the package {gone}, which is not installed for {sys.executable}"
    )
    assert "on the driver and wherever executors run" in said


def test_pyspark_before_4_2_is_one_sentence() -> None:
    # 4.0 has sources in Python, and not the module that admission control came with.
    module = "pyspark.sql.streaming.datasource"
    said = run((module,), CALLS, before=f"import pyspark.sql.datasource; del sys.modules[{module!r}]")
    assert "|" not in said
    assert said.startswith("penstock-spark needs PySpark 4.2 or later; this is ")


def test_pyspark_without_python_sources_at_all() -> None:
    assert run(("pyspark.sql.datasource",), "print(pyspark_penstock.__version__)") == "0.1.0"


def test_nothing_heavy_is_loaded_by_the_look_up() -> None:
    """Each Spark session looks sources up once, in a process of its own."""
    then = """
    loaded = [name for name in ("grpc", "numpy", "pyarrow", "google.protobuf") if name in sys.modules]
    print(loaded, pyspark_penstock.DefaultSource.name())
    """
    before = "import sys, pyspark.sql.datasource; print('numpy' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", before], capture_output=True, text=True, timeout=120, check=True
    )
    if ran.stdout.strip() == "False":
        assert run((), then) == "[] penstock"


READ = '"subscribe": "t"'
WRITE = '"topic": "t", "delivery": "at-least-once"'


@pytest.mark.parametrize(
    ("kind", "more", "options"),
    [
        ("reader", "", READ),
        ("streamReader", "", READ),
        ("writer", ", False", WRITE),
        ("streamWriter", ", False", WRITE),
    ],
)
def test_an_executor_without_a_wheel_says_so(kind: str, more: str, options: str) -> None:
    """The reader or writer comes there pickled; the import that fails must end in our sentence."""
    make = f"""
    import pickle
    from pyspark.sql.types import StructType
    source = pyspark_penstock.DefaultSource({{"gateway": "a:1", {options}}})
    print(pickle.dumps(source.{kind}(StructType().add("value", "binary"){more})).hex())
    """
    pickled = run((), make)
    load = f"""
    import pickle
    from pyspark_penstock.errors import PenstockError
    try:
        pickle.loads(bytes.fromhex("{pickled}"))
    except PenstockError as error:
        print(error)
    """
    said = run(("cramjam",), load)
    assert said.startswith("penstock-spark needs the package cramjam, which is not installed for ")
