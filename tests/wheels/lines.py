"""What people type who have installed the wheels, taken from README.md and the pages that it points to.

A line of a shell block is run as it stands there. Of Python the session comes first, as in Spark's own shell, and
what has to be true of the result comes behind.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
README: Final = "README.md"
SPARK: Final = "docs/spark.md"
SECURITY: Final = "docs/security.md"
INSTALLS: Final = "make setup && source .venv/bin/activate"
"""Stands at the head of README's lines; here wheels are installed in its place."""
OTHERS: Final = ("kafka-topics.sh",)
"""Programs that a line may call and that come from elsewhere."""
SAYS: Final = {
    "penstock consume greetings --from earliest --count 1": "hello",
    "kcat -b 127.0.0.1:9092 -L": 'topic "greetings" with 3 partitions',
    "penstock topic describe greetings": "greetings",
    "penstock spark run audit --topic flights": "nothing found",
}
"""What stands in the output of some lines."""
FLIGHTS: Final = 1_000
"""Records of the topic that the Spark lines read."""
_SESSION: Final = "from pyspark.sql import SparkSession\n\nspark = SparkSession.builder.getOrCreate()\n"


class Step(NamedTuple):
    """Something that is run; `page` is where it stands, or empty where a test adds it."""

    page: str
    text: str
    python: bool = False
    before: str = ""
    after: str = ""
    folder: str = "work"
    """Commands find the local cluster of the folder that they are called in."""

    @property
    def words(self) -> str:
        """For tables: one line."""
        if not self.python:
            return re.sub(r"\s+#.*", "", self.text)
        (first, *_) = (line for line in self.text.splitlines() if line.strip())
        return f"{first} ..."


class NoSuchLineError(Exception):
    """A page that does not say any more what is looked for in it."""


def blocks(page: str, heading: str, language: str) -> list[str]:
    """Fenced blocks of a language under a heading of a page. Raises NoSuchLineError when there are none."""
    text = (ROOT / page).read_text()
    for section in re.split(r"^(?=#{1,4} \w)", _hide_comments(text), flags=re.MULTILINE):
        if section.partition("\n")[0].lstrip("# ") == heading:
            shown = section.replace(_HIDDEN, "#")
            found = re.findall(rf"^```{language}\n(.*?)^```$", shown, re.MULTILINE | re.DOTALL)
            if found:
                return found
    raise NoSuchLineError(f"{page} has no {language} block under {heading!r}")


_HIDDEN: Final = "\0"


def _hide_comments(text: str) -> str:
    """A `#` at the left of a fenced block is no heading."""

    def hide(block: re.Match[str]) -> str:
        return block[0].replace("#", _HIDDEN)

    return re.sub(r"^```.*?^```$", hide, text, flags=re.MULTILINE | re.DOTALL)


def commands(block: str) -> Iterator[str]:
    """Lines of a shell block, continued ones joined; those with nothing but a comment are left out."""
    for line in block.replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line.strip()


def is_here(line: str) -> bool:
    """Whether the machine has the program, where it is not ours."""
    program = line.split()[0]
    return program == "echo" or program.startswith("penstock") or shutil.which(program) is not None


def readme_lines() -> list[str]:
    """Of the local cluster and the command. Raises NoSuchLineError."""
    first, *rest = commands(blocks(README, "Try it", "sh")[0])
    if first != INSTALLS:
        raise NoSuchLineError(f"{README} begins with {first!r}, not with {INSTALLS!r}")
    return rest


def cluster_steps() -> Iterator[Step]:
    """README's, and those that start a secure cluster, which it points to."""
    for line in readme_lines():
        yield Step(README, line)
    one, two, *_ = blocks(SECURITY, "One command", "sh")
    for line in (*commands(one), *commands(two)):
        if not line.startswith(OTHERS):
            yield Step(SECURITY, line, folder="secure")
    yield Step("", "penstock local down", folder="secure")


def spark_steps() -> Iterator[Step]:
    """README's block, then read, stream, write and audit as docs/spark.md has them."""
    yield Step("", "penstock local up")
    yield Step("", "penstock topic create flights --partitions 3")
    yield Step("", "penstock topic create copies --partitions 3")
    yield Step("", f"seq {FLIGHTS} | penstock produce flights")
    (readme,) = blocks(README, "Try it", "python")
    values = "sorted(int(row.value) for row in {}.collect())"
    all_of_them = f"list(range(1, {FLIGHTS + 1}))"
    yield Step(README, readme, True, _SESSION, f"assert {values.format('flights')} == {all_of_them}\n")
    (reading,) = blocks(SPARK, "Spark", "python")
    streamed = values.format("spark.read.parquet('flights')")
    yield Step(
        *(SPARK, reading, True, _SESSION),
        f"assert query.awaitTermination(300), query.status\nassert {streamed} == {all_of_them}\n",
    )
    writing = first_statement(blocks(SPARK, "Sink", "python")[0])
    copies = 'spark.read.format("penstock").option("gateway", "127.0.0.1:9094").option("subscribe", "copies")'
    written = f'{copies}.option("isolation", "read_committed").load()'
    yield Step(
        *(SPARK, writing, True, f"{_SESSION}df = spark.range(100)\n"),
        f"assert sorted(int(row.key) for row in {written}.collect()) == list(range(100))\n",
    )
    for line in commands(blocks(SPARK, "audit", "sh")[0]):
        if "--topic flights" in line:
            yield Step(SPARK, line)
    yield Step("", "penstock local down")


def first_statement(text: str) -> str:
    """Of a block of Python."""
    statement = ast.parse(text).body[0]
    return "\n".join(text.splitlines()[: statement.end_lineno]) + "\n"
