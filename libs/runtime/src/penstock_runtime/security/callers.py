"""Who calls: the identity in the certificate of a gRPC call, and what it may say it is.

The guard sets `caller` for the time of a call. Without TLS nobody sets it, and everything may be said.

A certificate's name binds: `node-7` (or `7`) speaks for node 7 alone, a gateway's name is its `gateway_id`. `*`
binds nothing: scaled processes share a certificate.
"""

from __future__ import annotations

from contextvars import ContextVar

from penstock_core.security.identity import ANY_NAME, PeerIdentity

_caller: ContextVar[PeerIdentity | None] = ContextVar("caller", default=None)

NODE_PREFIX = "node-"


def caller() -> PeerIdentity | None:
    """Who makes the call that is served now; None without TLS."""
    return _caller.get()


def set_caller(identity: PeerIdentity) -> None:
    """Say who makes the call of this task."""
    _caller.set(identity)


def node_fault(node_id: int) -> str:
    """Why the caller may not speak for this node; "" when it may."""
    identity = _caller.get()
    return "" if identity is None else node_name_fault(identity, node_id)


def gateway_fault(gateway_id: str) -> str:
    """Why the caller may not speak for this gateway; "" when it may."""
    identity = _caller.get()
    return "" if identity is None else gateway_name_fault(identity, gateway_id)


def gateway_of_call(gateway_id: str) -> str:
    """Which gateway calls: the one in its certificate, or what it says where that names none."""
    identity = _caller.get()
    return gateway_id if identity is None or identity.name == ANY_NAME else identity.name


def node_name_fault(identity: PeerIdentity, node_id: int) -> str:
    """Why a certificate is not that of this node; "" when it is. -1 is a node that has no id yet."""
    if identity.name in (ANY_NAME, f"{NODE_PREFIX}{node_id}", str(node_id)):
        return ""
    if node_id < 1:
        return (
            f"the certificate is that of {identity.name} alone, and the node has no node_id of its own; "
            f"set node_id, or issue a certificate with the name {ANY_NAME}"
        )
    return (
        f"the certificate is that of {identity.name}, not of node {node_id}; "
        f"issue one with the name {NODE_PREFIX}{node_id}"
    )


def gateway_name_fault(identity: PeerIdentity, gateway_id: str) -> str:
    """Why a certificate is not that of this gateway; "" when it is."""
    if identity.name in (ANY_NAME, gateway_id):
        return ""
    return (
        f"the certificate is that of {identity.name}, not of gateway {gateway_id}; "
        f"issue one with the name {gateway_id}"
    )
