"""What a fuzz target is, and what an input may do to it.

An input is accepted, or refused with an error that the parser documents. Everything else is a crash: another
exception, more CPU than `CPU_S_MAX`, or more memory at once than the target may take. CPU and not wall time
is measured, so that a loaded machine finds no hangs that are none.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

CPU_S_MAX: Final = 4.0
"""CPU for one input of a few KiB: a thousand times what any of them takes."""
MIB: Final = 1024 * 1024
_KIB: Final = 1024
PACKAGES: Final = (
    "penstock",
    "penstock_core",
    "penstock_kafka",
    "penstock_runtime",
    "penstock_frontend",
    "penstock_controller",
    "penstock_storage_node",
    "penstock_gateway",
    "penstock_proto",
    "pyspark_penstock",
    "kio",
)
"""What coverage guides: our own code, and the codec that takes bytes for us."""


class TooMuch(Exception):
    """An input took more CPU or memory than it may."""


@dataclass(frozen=True)
class Target:
    """One parser. `run` gives it an input, and checks what it accepts; `refusals` are the errors it may raise."""

    name: str
    run: Callable[[bytes], None]
    refusals: tuple[type[BaseException], ...]
    make_seeds: Callable[[], Iterable[bytes]]
    """Valid inputs, by our own encoders wherever there are any."""
    share: int = 10
    """Its part of all executions, in proportion to the others'."""
    input_bytes_max: int = 4096
    peak_bytes_max: int = 24 * MIB
    """Memory that one input may take at once."""
    words: tuple[bytes, ...] = field(default=())
    """Tokens of the format: the fuzzer's dictionary."""

    @cached_property
    def seeds(self) -> list[bytes]:
        """All seeds, made once."""
        return list(self.make_seeds())

    def accepts(self, data: bytes) -> bool:
        """Whether the input is accepted; anything but a documented refusal is raised."""
        try:
            self.run(data)
        except self.refusals:
            return False
        return True

    def check(self, data: bytes) -> bool:
        """As `accepts`, and raise TooMuch for an input that is far too dear."""
        began_s = time.process_time()
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        accepted = self.accepts(data)
        spent_s = time.process_time() - began_s
        grown_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kib) * _KIB
        if spent_s > CPU_S_MAX:
            raise TooMuch(f"{self.name}: {len(data)} bytes took {spent_s:.1f} s of CPU")
        if grown_bytes > self.peak_bytes_max:
            raise TooMuch(f"{self.name}: {len(data)} bytes took {grown_bytes} bytes of memory at once")
        return accepted


def expect(condition: bool, what: str) -> None:
    """Fail the input: something that is promised of an accepted one does not hold."""
    if not condition:
        raise AssertionError(what)
