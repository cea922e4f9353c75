"""`SPECS` with one row changed: what a half-done change of an API looks like to the tables that are held against it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock_kafka.wire import apis
from penstock_kafka.wire.apis import ApiKey


def change_spec(monkeypatch: pytest.MonkeyPatch, key: ApiKey, **changes: Any) -> None:
    """Change fields of an API's row, till the end of the test."""
    monkeypatch.setattr(apis, "SPECS", {**apis.SPECS, int(key): replace(apis.SPECS[key], **changes)})
