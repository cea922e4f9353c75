"""Handshakes and nothing else: what costs a server most for the fewest bytes."""

from __future__ import annotations

from dataclasses import replace

from security.floods import flood
from security.target import CERTIFIED, STRANGER, TLS, Outcome, Target

TEXT = "TLS handshakes on 8 connections at a time, again and again"
NEEDS = TLS
BY = (STRANGER, CERTIFIED)


def run(target: Target) -> Outcome:
    """For some seconds."""
    entry = replace(target.entry, user="", password="")
    done, refused = flood(lambda source: entry.connect(target.gateway, source, 5.0).close(), target.small)
    return Outcome(True, f"{done} done, {refused} refused")
