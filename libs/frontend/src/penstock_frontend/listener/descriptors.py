"""How many of the process's file descriptors clients may have: data files, peers and snapshots need some too.

A disk that cannot be read for want of a descriptor looks like one that failed.
"""

from __future__ import annotations

import sys
from typing import Final

_LEFT_MOST: Final = 1_280
"""All data files that a storage node keeps open (1,024), and what it needs for others."""
_LEFT_SHARE: Final = 4


def first_reserved() -> int:
    """The lowest number of a descriptor that no client may have.

    Numbers are given from below: who gets this one shows that all below are taken. POSIX, open().
    """
    try:
        import resource
    except ImportError:  # no such thing on Windows
        return sys.maxsize
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft - min(_LEFT_MOST, soft // _LEFT_SHARE)
