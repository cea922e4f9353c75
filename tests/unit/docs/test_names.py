"""What the documents name exists: modules, paths, identifiers, make targets, commands, settings, configs.

The changelog is history and may name what is gone.
"""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from fuzz.targets import TARGETS
from penstock.cli.main import cli
from penstock_controller.settings import ControllerSettings
from penstock_core.config import catalog
from penstock_core.failpoints import FAILPOINTS
from penstock_core.metadata.levels import NAME_LEVELS
from penstock_core.security.client_file import KEYS
from penstock_gateway.settings import GatewaySettings
from penstock_runtime.listener_settings import ListenerSettings
from penstock_storage_node.settings import StorageNodeSettings
from pyspark_penstock.jobs import archive_iceberg
from unit.docs.repository import DOCS, ROOT, TESTS, headings, module_exists, pages, texts

PAGES = [page for page in pages() if page.name != "CHANGELOG.md"]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))

SETTINGS = {
    name
    for settings in (ControllerSettings, StorageNodeSettings, GatewaySettings, ListenerSettings)
    for name in settings.model_fields
}
CONFIGS = (
    catalog.TOPIC_SETTINGS.keys()
    | catalog.TOPIC_NAMES.keys()
    | catalog.NODE_STATIC.keys()
    | catalog.NODE_DYNAMIC.keys()
    | catalog.CLUSTER_DYNAMIC.keys()
    | catalog.GROUP_SETTINGS.keys()
    | NAME_LEVELS.keys()
)
CLIENT_CONFIGS = frozenset(
    [
        "batch.size",
        "client.rack",
        "enable.idempotence",
        "exclude.internal.topics",
        "group.instance.id",
        "group.protocol",
        "isolation.level",
        "linger.ms",
        "max.request.size",
        "receive.message.max.bytes",
        "retry.backoff.ms",
        "socket.timeout.ms",
        "transaction.timeout.ms",
    ]
)
"""Configs of Kafka's clients."""
OTHERS = frozenset(
    [
        "PythonMicroBatchStream",
        "admin.properties",
        "ca.pem",
        "commit.manifest-merge.enabled",
        "dedicated.mode.enable.internal.rest",
        "events.log",
        "exactly.once.source.support",
        "flexibleVersions",
        "gc.enabled",
        "kafka.bootstrap.servers",
        "kafka.compression.type",
        "kafka.group.id",
        "kafka.isolation.level",
        "kafka.partitioner.class",
        "kafka.sasl.mechanism",
        "kafka.security.protocol",
        "meta.properties",
        "num.partitions",
        "penstock.roles",
        "pytest.ini",
        "rdkafka_performance",
        "spark.network.timeout",
        "validVersions",
    ]
)
"""Files, entry points, programs, options, fields, and configs of brokers, Connect, Iceberg: no names of ours."""
TABLE_PROPERTIES = frozenset(
    value
    for value in vars(archive_iceberg).values()
    if isinstance(value, str) and value.startswith("penstock.")
)
"""What an archive's table says of itself."""
FIXTURES = frozenset({"penstock_broker", "penstock_cluster"})


# -- reading pages ---------------------------------------------------------------------------------


def code_blocks(page: Path, language: str) -> Iterator[str]:
    """Text of a page's fenced blocks in a language."""
    yield from re.findall(rf"^ *```{language}\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL)


@cache
def words(page: Path) -> tuple[str, ...]:
    """What stands in backticks outside of fenced blocks."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return tuple(" ".join(word.split()) for word in re.findall(r"`([^`]+)`", text))


def commands(page: Path) -> Iterator[str]:
    """Command lines of shell blocks and of the text, continued lines joined, comments left out."""
    for block in code_blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"&&|\|\||[|;]", re.sub(r"(^|\s)#.*", "", line)):
                yield part.strip()
    yield from words(page)


@cache
def sources() -> str:
    """Everything that is no document."""
    return "\n".join(text for path, text in texts() if path.suffix != ".md" and path != Path(__file__))


@cache
def identifiers() -> frozenset[str]:
    """Every word of the sources."""
    return frozenset(re.findall(r"\w+", sources()))


@cache
def files() -> frozenset[str]:
    """Paths of all files and folders, and all their tails."""
    found: set[str] = set()
    skipped = {".git", ".venv", "__pycache__", "build", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
    for top in ROOT.iterdir():
        if top.name not in skipped:
            for path in (top, *(top.rglob("*") if top.is_dir() else ())):
                parts = path.relative_to(ROOT).parts
                if not skipped & set(parts):
                    found.update("/".join(parts[start:]) for start in range(len(parts)))
    return frozenset(found)


# -- modules and identifiers -----------------------------------------------------------------------


def resolves(dotted: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        name = ".".join(parts[:count])
        if module_exists(name):
            found: object = importlib.import_module(name)
            for attribute in parts[count:]:
                if not hasattr(found, attribute):
                    annotated = getattr(found, "__annotations__", {})
                    return attribute in annotated
                found = getattr(found, attribute)
            return True
    return False


@each_page
def test_modules_and_what_is_in_them(page: Path) -> None:
    named = {
        match
        for word in words(page)
        for match in re.findall(r"^(?:penstock\w*|pyspark_penstock)(?:\.\w+)+$", word)
        if match not in CONFIGS | OTHERS | TABLE_PROPERTIES and match.partition(".")[0] not in FIXTURES
    }
    assert [name for name in sorted(named) if not resolves(name)] == []


@each_page
def test_programs_that_python_is_told_to_run(page: Path) -> None:
    named = {m for line in commands(page) for m in re.findall(r"python3? -m ([\w.]+)", line)}
    missing = [
        name
        for name in sorted(named)
        if not _is_program(name, ROOT)
        and not _is_program(name, TESTS)
        # Others' programs, but not one of our folders that Python takes for a package.
        and (_is_folder(name.partition(".")[0]) or not module_exists(name))
    ]
    assert missing == []


def _is_folder(name: str) -> bool:
    return (ROOT / name).is_dir() or (TESTS / name).is_dir()


def _is_program(name: str, folder: Path) -> bool:
    path = folder.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


def is_identifier(word: str) -> bool:
    """Whether it looks like a name of code: several words in one, by case or by underscores."""
    if not re.fullmatch(r"_?[A-Za-z]\w+(\(\))?", word):
        return False
    return "_" in word.strip("_") or re.search(r"[a-z][A-Z]", word) is not None


METRIC = re.compile(
    r"penstock_(?:(?:node|gateway|controller(?:_raft)?|kafka|cluster|topic)_)?(\w+?)(?:_total)?"
)
MADE_METRIC = re.compile(r"penstock_controller_(\w+)_seconds")
"""`ControllerMetrics` adds the unit, too."""


@each_page
def test_identifiers(page: Path) -> None:
    named = {word.removesuffix("()") for word in words(page) if is_identifier(word)} - OTHERS
    missing = []
    for name in sorted(named):
        metric = METRIC.fullmatch(name)
        if name in identifiers() or (metric and metric[1] in identifiers()):
            continue
        if (metric := MADE_METRIC.fullmatch(name)) and metric[1] in identifiers():
            continue
        counter = name.removesuffix("_total")
        if name.startswith("penstock_") and {counter, counter.removeprefix("penstock_")} & identifiers():
            continue
        if name.startswith("PENSTOCK_") and name.removeprefix("PENSTOCK_").lower() in SETTINGS:
            continue
        missing.append(name)
    assert missing == []


# -- paths -----------------------------------------------------------------------------------------

PATH = re.compile(r"[\w.-]+(?:/[\w.*-]+)*/?")
SUFFIXES = (".py", ".md", ".proto", ".toml", ".c", ".java", ".yaml", ".txt")
MADE = frozenset({".penstock/cluster.json"})
"""Made by commands, not kept."""


@each_page
def test_paths(page: Path) -> None:
    tops = {path.name for path in ROOT.iterdir()}
    missing = []
    for word in words(page):
        path = word.partition("::")[0]
        if not PATH.fullmatch(path) or path in MADE or path in CONFIGS:
            continue
        if not path.endswith(SUFFIXES) and not (path.partition("/")[0] in tops and "/" in path):
            continue
        wanted = re.sub(r"\\\*", "[^/]*", re.escape(path.rstrip("/")))
        if path.rstrip("/") not in files() and not any(re.fullmatch(wanted, file) for file in files()):
            missing.append(path)
    assert missing == []


@each_page
def test_tests_are_where_they_are_said_to_be(page: Path) -> None:
    named = [word for word in words(page) if re.fullmatch(r"[\w/]+\.py::\w+", word)]
    for name in named:
        file, _, test = name.partition("::")
        path = next((p for p in (TESTS / file, ROOT / file) if p.is_file()), None)
        assert path is not None and f"def {test}(" in path.read_text(), name


def anchors(page: Path) -> set[str]:
    """What GitHub makes of a page's headings."""
    titles = (re.sub(r"[^\w\- ]", "", title.lower()) for title in headings(page))
    return {title.strip().replace(" ", "-") for title in titles}


@each_page
def test_links_into_a_page_lead_to_a_heading(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        there = page.parent / target if target else page
        assert anchor in anchors(there), f"{target}#{anchor}"


# -- commands --------------------------------------------------------------------------------------


@each_page
def test_make_targets_and_their_variables(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE))
    for line in commands(page):
        if not re.match(r"make [a-z]", line):
            continue
        _, target, *rest = shlex.split(line.replace("`", ""))
        assert target in targets, line
        for word in rest:
            variable, sign, _ = word.partition("=")
            if sign:
                assert re.search(rf"\$\({variable}\)|\$\(if \$\({variable}\)", makefile), line


def check_command(line: str) -> str:
    """What is wrong with a line that calls `penstock`; "" when all of it exists."""
    arguments = shlex.split(line)[1:]
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group) and arguments:
        if arguments[0].startswith("-"):
            break
        name = arguments.pop(0)
        found = command.get_command(context, name)
        if found is None:
            return f"no command {name}"
        command = found
    options = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    options |= {"--help", "-h", "--version"}
    for word in arguments:
        flag = word.partition("=")[0]
        if re.match(r"--?[a-zA-Z]", flag) and flag not in options:
            return f"no option {flag}"
    return ""


@each_page
def test_commands(page: Path) -> None:
    for line in commands(page):
        called = re.sub(r"^(?:\$ |\w+=\S+ |\.venv/bin/)+", "", line)
        if re.match(r"penstock [a-z-]", called) and "..." not in called:
            assert not check_command(called), f"{line}: {check_command(called)}"


def test_what_a_command_line_gets_wrong_is_seen() -> None:
    assert check_command("penstock topic create orders --partitions 3") == ""
    assert check_command("penstock topic invent orders") == "no command invent"
    assert check_command("penstock topic create orders --colour red") == "no option --colour"


# -- settings, configs, failpoints -----------------------------------------------------------------


@cache
def spans() -> frozenset[str]:
    """Names of spans, as the services begin them."""
    begun = re.compile(r"\.(?:begin|follow|tell)\(\s*(?:[\w.]+,\s*)?\"([a-z_.]+)\"")
    sources = (path.read_text() for path in (ROOT / "services").glob("*/src/**/*.py"))
    return frozenset(name for source in sources for name in begun.findall(source))


@each_page
def test_configs_failpoints_and_fuzz_targets(page: Path) -> None:
    known = (
        CONFIGS
        | KEYS
        | CLIENT_CONFIGS
        | OTHERS
        | TABLE_PROPERTIES
        | FAILPOINTS.keys()
        | TARGETS.keys()
        | spans()
    )
    missing = []
    for word in words(page):
        name = word.partition("=")[0]
        if not re.fullmatch(r"[a-z]+(?:\.[a-z][a-z_-]*)+", name) or name in known:
            continue
        tail = name.replace(".", "/")
        if (
            {name, tail, f"{tail}.py"} & files()
            or resolves(name)
            or _is_program(name, ROOT)
            or _is_program(name, TESTS)
        ):
            continue
        missing.append(name)
    assert missing == []


@each_page
def test_settings_of_commands_and_of_roles(page: Path) -> None:
    for line in commands(page):
        for key in re.findall(r"--set[ =](?:\w+\.)?(\w+)=", line):
            assert key in SETTINGS, line
        if match := re.match(r"(?:\.venv/bin/)?penstock-(?:controller|storage-node|gateway) (.*)", line):
            for flag in re.findall(r"--([a-z-]+)", match[1]):
                assert flag.replace("-", "_") in SETTINGS | {"help", "version", "config"}, line


def test_pages_are_looked_at_at_all() -> None:
    assert DOCS / "rules.md" in PAGES
    assert sum(len(words(page)) for page in PAGES) > 1000
    assert sum(1 for page in PAGES for line in commands(page) if line.startswith("penstock ")) > 20


def test_no_exception_is_left_over() -> None:
    said = {part for page in PAGES for word in words(page) for part in re.split(r"[= ]", word)}
    assert sorted((CLIENT_CONFIGS | OTHERS | MADE) - said) == []
