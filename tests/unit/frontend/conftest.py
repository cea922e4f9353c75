"""Fixtures of the frontend's tests."""

from support.loops import run

__all__ = ["run"]
