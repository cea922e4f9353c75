"""The scenarios; `load` registers them all, in the order of the matrix."""

from __future__ import annotations

import importlib

MODULES = (
    "data",
    "consume",
    "groups",
    "admin",
    "configs",
    "errors",
    "raw",
    "versions",
    "large",
    "auto_create",
    "rights",
    "sign_in",
    "administered",
    "transactions",
    "markers",
    "transacting",
)


def load() -> None:
    """Import every module of scenarios."""
    for name in MODULES:
        importlib.import_module(f"conformance.scenarios.{name}")
