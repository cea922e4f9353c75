"""Words that people write: settings, addresses, names, failpoints, Spark's options."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from fuzz.target import Target, expect
from penstock_controller.state import configs
from penstock_core.addresses import parse_address, parse_member
from penstock_core.config import catalog
from penstock_core.config.topic import TOPIC_CONFIG_DEFAULTS, TopicConfig
from penstock_core.errors import PenstockError
from penstock_core.failpoints import FAILPOINTS
from penstock_core.metadata import MetadataImage
from penstock_core.topics import check_topic_name
from penstock_runtime import failpoints
from penstock_runtime.addresses import StartupError
from penstock_runtime.settings import ListenerSettings, RoleSettings, load_settings
from penstock_storage_node.settings import StorageNodeSettings
from pyspark_penstock.errors import OptionError
from pyspark_penstock.options import parse_options

_KINDS: Final = (catalog.TOPIC, catalog.NODE, catalog.CLUSTER, catalog.GROUP)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _setting(data: bytes) -> None:
    """`kind key value`: what AlterConfigs checks, and what roles make of what passed."""
    if not data:
        return
    kind = _KINDS[data[0] % len(_KINDS)]
    key, _, value = _text(data[1:]).partition("=")
    # Roles read settings that a newer version may have checked.
    settings = TopicConfig.from_config({key: value}, 3)
    expect(1 <= settings.min_insync_replicas <= 3, "as many as there are replicas")
    catalog.validate(kind, key, value)
    catalog.validate_together(kind, {key: value})


def _resource(data: bytes) -> None:
    """The name of what a setting is for, as the controller checks it."""
    if data:
        configs._check_resource(MetadataImage(), _KINDS[data[0] % len(_KINDS)], _text(data[1:]))


def _setting_seeds() -> Iterator[bytes]:
    for key, value in TOPIC_CONFIG_DEFAULTS.items():
        yield b"\x00" + f"{key}={value}".encode()
    for key in catalog.NODE_DYNAMIC:
        yield b"\x01" + f"{key}=100".encode()
    for key in catalog.TOPIC_NAMES:
        yield b"\x02" + f"{key}=1".encode()
    for key in catalog.GROUP_SETTINGS:
        yield b"\x03" + f"{key}=45000".encode()


def _address(data: bytes) -> None:
    text = _text(data)
    parse_member(text)
    address = parse_address(text.rpartition("@")[2])
    expect(parse_address(str(address)) == address, "an address is read back")


def _topic_name(data: bytes) -> None:
    name = _text(data)
    check_topic_name(name)
    expect(name.isascii() and "/" not in name and "\x00" not in name, "a name is a file's name")


def _failpoints(data: bytes) -> None:
    for name, armed in failpoints.parse(_text(data)).items():
        expect(name in FAILPOINTS and 0 <= armed.pause_ms <= failpoints.PAUSE_MS_MAX, "known, and bounded")


def _failpoints_seeds() -> Iterator[bytes]:
    yield b"log.append.after_write=kill@3;controller.apply.before=pause:500"
    yield b"log.append.torn_write=torn; log.flush.before_sync=eio;"


def _role_settings(data: bytes) -> None:
    """A command line of a storage node, and a listener as JSON."""
    words = [word for word in _text(data).split("\x00") if word not in ("-h", "--help", "--version")]
    if any(word.startswith(("--config", "--data")) for word in words):
        return  # files of this machine
    try:
        settings: RoleSettings = load_settings(StorageNodeSettings, words, "storage-node")
    except SystemExit as end:
        expect(not end.code, "only --help ends the process")
        return
    expect("***" not in str(settings.printable().get("grpc_bind")), "printable")


def _role_seeds() -> Iterator[bytes]:
    listener = {"name": "PLAIN", "bind": "127.0.0.1:9092", "mode": "direct", "advertised": {"*": "h:1"}}
    ListenerSettings.model_validate(listener)
    for words in (
        ["--controllers", "1@127.0.0.1:1,2@[::1]:2", "--log-level", "debug"],
        ["--listeners", json.dumps([listener]), "--rack=a"],
        ["--allow-insecure-bind", "--shutdown-timeout-ms", "5"],
    ):
        yield "\x00".join(words).encode()


def _spark_options(data: bytes) -> None:
    lines = [line.partition("=") for line in _text(data[1:]).split("\x00") if line]
    parse_options({key: value for key, _, value in lines}, streaming=bool(data[:1] > b"\x7f"))


def _spark_seeds() -> Iterator[bytes]:
    base = {"gateway": "127.0.0.1:9000", "subscribe": "t"}
    for extra in (
        {},
        {"startingOffsets": '{"t":{"0":5,"1":-2}}', "endingOffsets": "latest"},
        {"startingTimestamp": "1000", "minPartitions": "4", "includeHeaders": "true"},
        {"startingOffsetsByTimestamp": '{"t":{"0":1000}}', "failOnDataLoss": "false"},
        {"maxOffsetsPerTrigger": "100", "minOffsetsPerTrigger": "10", "maxTriggerDelay": "1h"},
    ):
        words = "\x00".join(f"{key}={value}" for key, value in {**base, **extra}.items())
        yield b"\x00" + words.encode()
        yield b"\xff" + words.encode()


TARGETS: Final = [
    Target(
        "words.setting",
        _setting,
        (PenstockError,),
        _setting_seeds,
        share=20,
        input_bytes_max=8192,
        words=tuple(key.encode() + b"=" for key in TOPIC_CONFIG_DEFAULTS),
    ),
    Target(
        "words.resource",
        _resource,
        (PenstockError,),
        # There are none of a topic or node in an empty image.
        lambda: [b"\x02", b"\x03group", b"\x03g"],
        share=5,
        input_bytes_max=6000,
    ),
    Target(
        "words.address",
        _address,
        (ValueError,),
        lambda: [b"1@host:9092", b"[::1]:9092", b"127.0.0.1:0", b"a.b.c:65535"],
        share=15,
        input_bytes_max=256,
    ),
    Target(
        "words.topic_name",
        _topic_name,
        (PenstockError,),
        lambda: [b"orders.eu-1_x", b"..", b"a" * 249],
        share=10,
        input_bytes_max=300,
    ),
    Target(
        "words.failpoints",
        _failpoints,
        (StartupError,),
        _failpoints_seeds,
        share=10,
        input_bytes_max=6000,
        words=(*(name.encode() for name in FAILPOINTS), b"=kill", b"=pause:", b"@1", b"=torn", b"=enospc"),
    ),
    Target(
        "words.role_settings",
        _role_settings,
        (StartupError,),
        _role_seeds,
        share=2,
        input_bytes_max=512,
        words=(b"--controllers\x00", b"--listeners\x00", b"--rack=", b'"name":', b'"bind":', b"\x00"),
    ),
    Target(
        "words.spark_options", _spark_options, (OptionError,), _spark_seeds, share=10, input_bytes_max=512
    ),
]
