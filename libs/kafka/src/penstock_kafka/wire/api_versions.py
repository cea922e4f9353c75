"""ApiVersions, the first request on every connection, by hand.

A request of an unknown version is answered in version 0 with UNSUPPORTED_VERSION and the
range of ApiVersions alone (KIP-511); the response header never has tagged fields.
Features (KIP-584) stand in tagged fields since version 3. Without `transaction.version` 2 among
them clients keep to the transactions of before KIP-890.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock_core.errors import ErrorCode
from penstock_kafka.wire.apis import FLEXIBLE_SINCE, SUPPORTED, ApiKey
from penstock_kafka.wire.frames import RequestHeader, response_header
from penstock_kafka.wire.primitives import INT16, INT32, INT64, Buffer, Reader, put_count, put_string, uvarint

_LEVEL_0_SINCE: Final = 4
_RANGE: Final = struct.Struct(">hhh")
_SOFTWARE_WORD: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_LEVELS: Final = struct.Struct(">hhb")
_TAGGED_RANGE: Final = struct.Struct(">hhhb")


@dataclass(frozen=True, slots=True)
class Features:
    """What a process understands, and what the cluster has agreed on (KIP-584)."""

    supported: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Lowest and highest level by name."""
    finalized: Mapping[str, int] = field(default_factory=dict)
    """The level by name."""
    epoch: int = 0
    """Rises with every change of what is finalized, and is the same at every process."""


NO_FEATURES: Final = Features()


def decode_api_versions(frame: Buffer, header: RequestHeader) -> tuple[str, str]:
    """Name and version of the client's software, "" below version 3; raises Malformed."""
    if header.api_version < FLEXIBLE_SINCE[ApiKey.API_VERSIONS]:
        return "", ""
    reader = Reader(frame, header.body_offset, flexible=True, items_max=header.items_max)
    software = reader.string()
    version = reader.string()
    reader.skip_tags()
    return software, version


def is_software_word(word: str) -> bool:
    """Whether KIP-511 allows this as name or version of a client's software (Kafka: ApiVersionsRequest.isValid)."""
    return _SOFTWARE_WORD.fullmatch(word) is not None


def encode_api_versions_response(
    header: RequestHeader,
    ranges: Mapping[int, tuple[int, int]],
    error: int = ErrorCode.NONE,
    features: Features = NO_FEATURES,
) -> bytes:
    """The response that advertises `ranges`, without length prefix.

    For a request version that this build does not know it is the version 0 form with
    UNSUPPORTED_VERSION, whatever the other arguments say.
    """
    version = header.api_version
    low, high = SUPPORTED[ApiKey.API_VERSIONS]
    if not low <= version <= high:
        version = 0
        error = ErrorCode.UNSUPPORTED_VERSION
        ranges = {int(ApiKey.API_VERSIONS): (low, high)}
    flexible = version >= FLEXIBLE_SINCE[ApiKey.API_VERSIONS]
    out = [
        response_header(ApiKey.API_VERSIONS, version, header.correlation_id),
        INT16.pack(error),
        put_count(len(ranges), flexible),
    ]
    for key in sorted(ranges):
        first, last = ranges[key]
        out.append(_TAGGED_RANGE.pack(key, first, last, 0) if flexible else _RANGE.pack(key, first, last))
    if version >= 1:
        out.append(INT32.pack(0))
    if flexible:
        out.append(_feature_tags(features, version))
    return b"".join(out)


def _feature_tags(features: Features, version: int) -> bytes:
    """Tag 0 supported, 1 the epoch, 2 finalized; nothing at all where there are none."""
    if not features.supported:
        return b"\x00"
    # Who speaks version 3 may not know that a level can be 0 (KAFKA-17011).
    shown = {
        name: levels for name, levels in features.supported.items() if levels[0] or version >= _LEVEL_0_SINCE
    }
    supported = b"".join(
        put_string(name, True) + _LEVELS.pack(low, high, 0) for name, (low, high) in shown.items()
    )
    # A finalized level is given as a range, the upper end first (finalizedFeatures in ApiVersionsResponse.json).
    finalized = b"".join(
        put_string(name, True) + _LEVELS.pack(level, level, 0) for name, level in features.finalized.items()
    )
    fields = (
        put_count(len(shown), True) + supported,
        INT64.pack(features.epoch),
        put_count(len(features.finalized), True) + finalized,
    )
    tags = b"".join(bytes((tag,)) + uvarint(len(data)) + data for tag, data in enumerate(fields))
    return uvarint(len(fields)) + tags
