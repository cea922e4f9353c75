"""Hypothesis prints how to repeat a failure."""

from support import hypothesis_profile

assert hypothesis_profile
