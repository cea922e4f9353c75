"""What gRPC is told by the environment, which it reads once, when a process first loads it."""

from __future__ import annotations

import os


def prepare() -> None:
    """Call it before gRPC is imported; what the environment says already stays.

    GRPC_VERBOSITY: every lost connection would be written to standard error, between our own lines; each comes
    back as a status too, which is handled.

    GRPC_ENABLE_FORK_SUPPORT: with it a child of `subprocess` with a `preexec_fn` (Spark's JVM is one) runs gRPC's
    threads between fork and exec, while its descriptors are being closed: about one of ten such children died
    beside open channels (gRPC 1.85.1). Nothing here goes on with gRPC's calls in a forked process.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
