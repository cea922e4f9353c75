"""Crashes on purpose: named failpoints, everything killed at once, power cuts."""
