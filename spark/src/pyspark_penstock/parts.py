"""Loads the parts of this package that need more than Python and PySpark's core, when they are needed.

Spark's look-up imports every module named `pyspark_*` with no guard: one that raises leaves the session without any
Python source, others' included, and nobody is told why. So the top of this package imports nothing that may fail, and
what is missing (a wheel, a PySpark that is too old) is told by whatever needs it, in one sentence.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from pyspark_penstock.errors import MissingPartError

_WHERE = "on the driver and wherever executors run"


def part(name: str) -> Any:
    """A module of this package. Raises MissingPartError."""
    try:
        return importlib.import_module(f"pyspark_penstock.{name}")
    except ImportError as error:
        raise MissingPartError(_reason(error)) from None
    except Exception as error:
        # Generated stubs look at the version of protobuf and gRPC, and raise what they please.
        first = (str(error).splitlines() or [""])[0]
        raise MissingPartError(
            f"penstock-spark cannot be loaded by {sys.executable}: {type(error).__name__}: {first}; install "
            f"penstock-spark with pip {_WHERE}"
        ) from None


def restore(module: str, name: str, *arguments: Any) -> Any:
    """Makes an object of this package where it was sent to. Raises MissingPartError, where pickle alone would end in
    an import error of a module that the user never heard of."""
    return getattr(part(module), name)(*arguments)


def _reason(error: ImportError) -> str:
    package = (error.name or "").split(".")[0]
    if package == "pyspark":
        return f"penstock-spark needs PySpark 4.2 or later; this is {_pyspark_version()}: upgrade it {_WHERE}"
    if isinstance(error, ModuleNotFoundError):
        return (
            f"penstock-spark needs the package {package}, which is not installed for {sys.executable}: install "
            f"penstock-spark with pip, which brings it, {_WHERE}"
        )
    return f"penstock-spark cannot be loaded by {sys.executable}: {error}; install penstock-spark with pip {_WHERE}"


def _pyspark_version() -> str:
    try:
        return str(importlib.import_module("pyspark").__version__)
    except ImportError:
        return "not there at all"
