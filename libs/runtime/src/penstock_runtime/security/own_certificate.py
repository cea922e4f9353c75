"""The certificate that a role starts with, and what it does while the role runs."""

from __future__ import annotations

from collections.abc import Callable

from penstock_core.security.identity import PeerIdentity
from penstock_runtime.addresses import StartupError
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.security.role_tls import RoleTls
from penstock_runtime.security.tls_files import TlsFiles


def open_certificate(
    tls: RoleTls | None, role: str, name_fault: Callable[[PeerIdentity], str]
) -> TlsFiles | None:
    """Load it; None where there is none. Raises StartupError, also for another process's (`name_fault` says why)."""
    if tls is None:
        return None
    files = TlsFiles(tls, role)
    fault = name_fault(files.current.identity)
    if fault:
        raise StartupError(f"tls.cert = {tls.cert}: {fault}")
    return files


def watch_certificate(files: TlsFiles | None, lifecycle: Lifecycle) -> None:
    """Take new files while the role runs."""
    if files is None:
        return
    lifecycle.create_task(
        files.watch(
            lambda: lifecycle.log.info("new certificate in use for new connections", cert=str(files.cert)),
            lifecycle.log.warning,
        ),
        "certificates",
    )
