"""The certificate that a role starts with, and what it does while the role runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from prometheus_client import Gauge

from penstock_core.security.audit import CHANGE
from penstock_core.security.identity import PeerIdentity
from penstock_runtime.addresses import StartupError
from penstock_runtime.audit import audit_of
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.logs import CONSTANT
from penstock_runtime.metadata_client import MetadataClient
from penstock_runtime.security.role_tls import RoleTls
from penstock_runtime.security.tls_files import TlsFiles

_WARN_S = 14 * 86_400.0
_WARN_EVERY_S = 86_400.0


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
    """Take new files while the role runs, and say in time that the certificate runs out."""
    if files is None:
        return
    if files.takes_plaintext:
        lifecycle.log.warning(
            f"tls.mode = {files.settings.mode} takes plaintext from anybody;"
            " end the transition with tls.mode = require",
            **{CONSTANT: "roles take plaintext from anybody"},
        )
    Gauge(
        "penstock_certificate_expires_timestamp_seconds",
        "When the certificate of [tls] that is in use runs out, in seconds since 1970.",
        registry=lifecycle.registry,
    ).set_function(lambda: files.current.not_after_s)
    lifecycle.create_task(_warn(files, lifecycle), "certificate's end")
    lifecycle.create_task(
        files.watch(
            lambda: say_renewed(lifecycle, str(files.cert), str(files.current.identity)),
            lifecycle.log.warning,
        ),
        "certificates",
    )


def say_renewed(lifecycle: Lifecycle, cert: str, name: str) -> None:
    """A certificate of this process has been replaced: log and audit log say so. `name` is whose it is."""
    lifecycle.log.info("new certificate in use for new connections", cert=cert, name=name)
    event = {"event": CHANGE, "outcome": "ok", "type": "certificate", "operation": "use", "resource": name}
    audit_of(lifecycle).tell_changes(lambda: [{**event, "cert": cert}])


def follow_refused(files: TlsFiles | None, metadata: MetadataClient) -> None:
    """Have refused certificates from the metadata, for whoever calls this process."""
    if files is not None:
        refused = files.refused
        metadata.on_change(lambda _, new, __: refused.take(new.security.refused_certificates))


def expiry_warning(files: TlsFiles, now_s: float) -> str:
    """What to say of a certificate that runs out within two weeks; "" of another one."""
    left_s = files.current.not_after_s - now_s
    if left_s > _WARN_S:
        return ""
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(files.current.not_after_s))
    verb = "ran out" if left_s <= 0 else "runs out"
    return (
        f"tls.cert = {files.cert} {verb} at {when}; nobody takes it then: issue it anew (penstock cert renew)"
    )


async def _warn(files: TlsFiles, lifecycle: Lifecycle) -> None:
    while True:
        if warning := expiry_warning(files, time.time()):
            lifecycle.log.warning(warning, **{CONSTANT: "certificate runs out"})
        await asyncio.sleep(_WARN_EVERY_S)
