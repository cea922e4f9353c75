"""The version of this build, from the installed package's own metadata."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("penstock-runtime")
except PackageNotFoundError:  # run from a source tree that was never installed
    VERSION = "0.0.0"
