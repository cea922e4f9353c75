"""Who asks by HTTP: looked at before any handler, but those of health.

A browser can be made to ask us by a stranger's page whose name the stranger lets point here (DNS rebinding). It then
says that name in the Host header; so a name with a dot has to be one of ours. Addresses, and names without a
dot, which nobody can have in the public DNS, need no look.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypedDict

from penstock_core.text import harmless
from penstock_frontend.authorizer import (
    ANONYMOUS,
    CLUSTER_NAME,
    Authorizer,
    Identity,
    Operation,
    ResourceType,
    client_identity,
)
from penstock_frontend.sign_in.callers import CallerDoor, CutOff, NotLetIn
from penstock_frontend.sign_in.doors import covers
from penstock_runtime.door_settings import HttpDoorSettings
from penstock_runtime.http import web
from penstock_runtime.ports import wall_ms
from penstock_runtime.security.listener_tls import ListenerTlsFiles, is_resumed_after_end

HEALTH: Final = frozenset({"/healthz", "/readyz"})
METRICS: Final = "/metrics"
_IDENTITY: Final = web.RequestKey("penstock_identity", Identity)

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpDesk(TypedDict, total=False):
    """What an `HttpServer` needs beside its routes."""

    tls: Any
    """The context for the next connection."""
    look: Callable[[web.Request], Awaitable[web.Response | None]]
    may_face_others: bool


def identity_of(request: web.Request) -> Identity:
    """Who asks."""
    found: Identity | None = request.get(_IDENTITY)
    return found or client_identity(ANONYMOUS, request.remote or "")


def error_response(status: int, error: str, hint: str, **headers: str) -> web.Response:
    """An error as JSON: what is wrong, and what to do."""
    return web.json_response({"error": error, "hint": hint}, status=status, headers=headers)


def denied(request: web.Request, what: str) -> web.Response:
    """Whoever asks has no right to `what`."""
    return error_response(
        403,
        f"{identity_of(request).principal} has no right to {what}",
        "grant it by an ACL, or ask as somebody who has it",
    )


def http_desk(
    door: CallerDoor,
    files: ListenerTlsFiles | None,
    authorizer: Authorizer,
    names: Callable[[], Iterable[str]] = tuple,
    *,
    wall_ms: Callable[[], int] = wall_ms,
) -> HttpDesk:
    """That of a role's port. `names`: hosts by which clients know this process."""
    settings = door.settings
    assert isinstance(settings, HttpDoorSettings)

    def known(host: str) -> bool:
        ours = (*settings.names, *names(), *(() if files is None else files.current.names))
        return is_harmless_host(host) or any(covers(name, host) for name in ours if name)

    async def look(request: web.Request) -> web.Response | None:
        if request.path in HEALTH:
            return None
        said = request.headers.get("Host", "")
        if said and not known(host_of(said)):
            return error_response(
                421,
                f"this is not {harmless(said)[:100]}",
                "ask by an address or name of this process, or add the name to http_door.names",
            )
        is_public = request.path == METRICS and settings.metrics_public
        if not is_public:
            try:
                await _sign_in(door, request, wall_ms() / 1000)
            except NotLetIn as error:
                return _unauthenticated(door, str(error))
            except CutOff as error:
                return error_response(503, str(error), "ask again when a controller is up")
        if request.path == METRICS and not (
            is_public
            or authorizer.authorize(
                identity_of(request), Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME
            )
        ):
            return error_response(
                403,
                f"{identity_of(request).principal} has no right to DESCRIBE the cluster",
                "grant it by an ACL, or set http_door.metrics_public",
            )
        return None

    desk: HttpDesk = {"look": look, "may_face_others": settings.may_face_others}
    if files is not None:
        desk["tls"] = files.context
    return desk


async def _sign_in(door: CallerDoor, request: web.Request, now_s: float) -> None:
    host = request.remote or ""
    authorization = request.headers.getall("Authorization", [])
    connection = None if request.transport is None else request.transport.get_extra_info("ssl_object")
    if connection is not None and is_resumed_after_end(connection, now_s):
        raise door.turned_away(host, "its certificate has ended, and its session was resumed; renew it")
    certificate: bytes | None = None if connection is None else connection.getpeercert(True)
    caller = await door.caller(
        authorization[0] if len(authorization) == 1 else None, certificate or None, host
    )
    request[_IDENTITY] = door.asking(caller, host, f"{request.method} {request.path}")


def _unauthenticated(door: CallerDoor, why: str) -> web.Response:
    schemes = door.schemes
    if not schemes:
        return error_response(401, why, "show a certificate of a user that principal_mapping_rules know")
    answer = error_response(
        401, why, f"send Authorization: {' or '.join(schemes)}, as curl does with --user or --oauth2-bearer"
    )
    for scheme in schemes:
        answer.headers.add("WWW-Authenticate", f'{scheme} realm="penstock"')
    return answer


def host_of(header: str) -> str:
    """The host of a Host header, without port and brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if header.count(":") == 1 else header


def is_harmless_host(host: str) -> bool:
    """Whether no stranger's page can have that name."""
    name = host.lower().removesuffix(".")
    if "." not in name or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
