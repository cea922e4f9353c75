"""Handshakes and nothing else: what costs a server most for the fewest bytes."""

from __future__ import annotations

from security.floods import flood
from security.target import TLS, Entry, Outcome, Target

TEXT = "TLS handshakes on 8 connections at a time, again and again"
NEEDS = TLS


def run(target: Target) -> Outcome:
    """For some seconds."""
    entry = Entry(target.entry.ca)
    done, refused = flood(lambda source: entry.connect(target.gateway, source, 5.0).close(), target.small)
    return Outcome(True, f"{done} done, {refused} refused")
