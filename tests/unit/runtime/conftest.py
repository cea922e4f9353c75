"""Fixtures of the runtime's tests."""

from support.loops import run

__all__ = ["run"]
