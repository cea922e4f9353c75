"""aiokafka's compiled record reader, without aiokafka's client.

Importing any module of aiokafka runs the package's `__init__`, which loads the client,
asyncio and all the protocol classes (5-7 MB, 30 ms). The reader needs none of it, so
it is loaded under bare packages that have only a path, and these are forgotten
afterwards: a later `import aiokafka` gets the real ones. Where aiokafka is already
imported, its own modules are taken.

The reader is a C extension that trusts its buffer: a varint at the very end of a
damaged batch is read up to `OVERREAD_BYTES` past it. Whoever gives it bytes from outside
must own that much memory behind them.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, Final

_PACKAGE: Final = "aiokafka"
_NESTED: Final = ("record", "_crecords")
_READER: Final = "aiokafka.record._crecords.default_records"

OVERREAD_BYTES: Final = 64
"""Bytes behind a batch that the reader may touch (two varints at most, with room to spare)."""


def _load() -> types.ModuleType:
    if _PACKAGE in sys.modules:
        return importlib.import_module(_READER)
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return importlib.import_module(_READER)
    path = spec.submodule_search_locations[0]
    name = _PACKAGE
    before = set(sys.modules)
    _add_bare_package(name, path)
    for part in _NESTED:
        name, path = f"{name}.{part}", f"{path}/{part}"
        _add_bare_package(name, path)
    try:
        return importlib.import_module(_READER)
    finally:
        for added in set(sys.modules) - before:
            if added == _PACKAGE or added.startswith(_PACKAGE + "."):
                del sys.modules[added]


def _add_bare_package(name: str, path: str) -> None:
    package = types.ModuleType(name)
    package.__path__ = [path]
    sys.modules[name] = package


RecordReader: Final[Callable[[Any], Iterator[Any]]] = _load().DefaultRecordBatch
"""Iterator over the records of one batch (uncompressed, header included).

Each record has `offset`, `timestamp`, `key`, `value`, `headers`. Raises when a record is
malformed or when bytes are left after the last one.
"""
