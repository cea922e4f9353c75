"""Passwords that are guessed: each wants to be compared, and answered late."""

from __future__ import annotations

from security.floods import flood
from security.target import TLS, Entry, Outcome, Target

TEXT = "wrong passwords on 8 connections at a time, again and again"
NEEDS = TLS


def run(target: Target) -> Outcome:
    """For some seconds."""
    entry = Entry(target.entry.ca, "admin", "not the password")
    done, refused = flood(lambda source: entry.connect(target.gateway, source, 30.0).close(), target.small)
    return Outcome(done == 0, f"{done} let in, {refused} refused")
