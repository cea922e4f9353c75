"""CRC-32C of any buffer.

The package `crc32c` takes memoryviews as they are; google-crc32c takes `bytes` only, and
the copy that it would need costs half as much again on 1 MiB (35 against 52 us).
Both use the processor's instruction. Buffers above 32 KiB are summed with the
interpreter lock released.
"""

from __future__ import annotations

from crc32c import crc32c

__all__ = ["crc32c"]
