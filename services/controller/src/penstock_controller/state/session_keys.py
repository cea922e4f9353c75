"""Keys of the native API's tokens: the cluster has two, and gets a new one from time to time.

A token that the oldest key signed has ended long before that key goes (`penstock_core.security.session_token`).
"""

from __future__ import annotations

from penstock_controller.state.generation import Context, Generated
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.levels import level_of
from penstock_core.security.session_token import KEY_NAME, KEYS_KEPT, key_number
from penstock_proto.v1 import metadata_pb2 as pb

_KEY_BYTES = 32
_LEVEL = 2
"""Secrets are records since then."""


def newest_key(image: MetadataImage) -> int:
    """The number of the newest key; 0 when there is none."""
    return max(_numbers(image), default=0)


def lacks_key(image: MetadataImage) -> bool:
    """Whether the cluster should have a key and has none: one of a build of before."""
    return level_of(image) >= _LEVEL and not newest_key(image)


def rotate(ctx: Context, newest: int) -> Generated[bool]:
    """A new key, unless somebody has made the one after `newest` already."""
    if level_of(ctx.image) < _LEVEL or newest_key(ctx.image) != newest:
        return Generated(False)
    return Generated(True, next_key(ctx))


def next_key(ctx: Context) -> list[pb.MetadataRecord]:
    """Records of the next key, and of those that go for it."""
    there = sorted(_numbers(ctx.image))
    number = there[-1] + 1 if there else 1
    gone = there[: max(0, len(there) - (KEYS_KEPT - 1))]
    records = [
        pb.MetadataRecord(
            cluster_secret=pb.ClusterSecretRecord(
                name=f"{KEY_NAME}{number}", value=ctx.rng.randbytes(_KEY_BYTES)
            )
        )
    ]
    records += [
        pb.MetadataRecord(cluster_secret=pb.ClusterSecretRecord(name=f"{KEY_NAME}{old}")) for old in gone
    ]
    return records


def _numbers(image: MetadataImage) -> list[int]:
    found = (key_number(name) for name in image.security.secrets)
    return [number for number in found if number is not None]
