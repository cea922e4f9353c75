"""Which gateway a command talks gRPC to, when the user named one, or the cluster, or nothing.

Theory: a gateway is asked who it is before anything is read or sent, so that an address at which nobody
answers is one line and not a stream that breaks. Kafka's protocol does not tell gRPC addresses. Behind a
`--bootstrap` they are looked for at the ports that go with that one in the defaults of a gateway, of
`penstock local` and of the compose file, and at the default; what answers there counts only if it is
of the same cluster.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from penstock.cli import reach
from penstock.cli.kafka import admin_client, cluster_metadata
from penstock.cli.local_gateways import local_gateways
from penstock.connector import PLAINTEXT, Connector
from penstock.errors import CommandError, ExitCode
from penstock.native import open_gateway
from penstock.text import harmless

GRPC_PORT_OFFSETS: Final = (2, -98)
"""From a gateway's Kafka port, and from its direct one."""
GATEWAY_DEFAULT: Final = "127.0.0.1:9094"
_PAUSES_S: Final = (0.2, 0.6, 1.2)
"""Between tries where something takes connections and no call."""


def find_gateway(
    gateways: str | None, bootstrap: str | None, directory: Path, connector: Connector = PLAINTEXT
) -> str:
    """gRPC address of a gateway that answers: of `gateways`, or of the cluster at `bootstrap`, or of the
    running local cluster in `directory`, or the default, whichever is given or there first.

    Raises UNREACHABLE in a line that names every address tried, and the mend.
    """
    named = gateways or ("" if connector.file is None else connector.file.gateway)
    if named:
        hint = "is the cluster up, and is --gateway right?"
        return _first(reach.addresses_of(named, "--gateway"), hint, connector=connector)
    if bootstrap:
        return _of_cluster(bootstrap, directory, connector)
    local = local_gateways(directory, "grpc")
    if local.addresses:
        return _first(local.addresses, local.hint, connector=connector)
    return _first(
        [GATEWAY_DEFAULT], f"{local.hint}, --gateway HOST:PORT names another gateway", connector=connector
    )


def _of_cluster(bootstrap: str, directory: Path, connector: Connector) -> str:
    """A gateway of the cluster at a Kafka address."""
    # "" is no gateway's: where the cluster tells no id yet, nothing is taken for its gateway.
    cluster_id = cluster_metadata(admin_client(bootstrap), bootstrap).cluster_id or ""
    candidates = []
    for address in reach.addresses_of(bootstrap, "--bootstrap"):
        host, port = reach.split_address(address)
        shown = f"[{host}]" if ":" in host else host
        ports = [port + offset for offset in GRPC_PORT_OFFSETS] + [_port(GATEWAY_DEFAULT)]
        candidates += [f"{shown}:{one}" for one in ports if 0 < one < 65_536]
    return _first(
        [*local_gateways(directory, "grpc").addresses, *candidates],
        "--gateway HOST:PORT names one",
        f"no gateway of the cluster at {bootstrap} was found",
        cluster_id,
        connector,
    )


def _first(
    addresses: Sequence[str],
    hint: str,
    trouble: str = "no gateway answers",
    cluster_id: str | None = None,
    connector: Connector = PLAINTEXT,
) -> str:
    """The first address at which a gateway answers, one of that cluster if one is asked for."""
    problems = []
    for address in dict.fromkeys(addresses):
        found = cluster_id_at(address, connector)
        if isinstance(found, reach.Problem):
            problems.append(str(found))
        elif cluster_id is not None and found != cluster_id:
            problems.append(f"{address}: a gateway of another cluster")
        else:
            return address
    raise CommandError(f"{trouble} ({'; '.join(problems)}); {hint}", ExitCode.UNREACHABLE)


def cluster_id_at(address: str, connector: Connector = PLAINTEXT) -> str | reach.Problem:
    """Ask a gateway for its cluster's id, as Kafka clients are told it (UUID in base64url)."""
    try:
        import grpc

        from penstock_proto.v1 import gateway_pb2
    except ImportError as error:
        raise CommandError(
            f"a gateway is asked by gRPC ({error.name} is not installed): pip install 'penstock[native]'"
        ) from None
    seen = reach.look_for_grpc(address)
    if seen.speaks in (None, reach.Speaks.KAFKA):
        return seen
    _, answer_s = reach.timeouts_s()
    pauses_s = list(_PAUSES_S)
    while True:
        with open_gateway(address, connector) as gateway:
            try:
                answer = gateway.stub.Describe(
                    gateway_pb2.DescribeRequest(), timeout=answer_s, metadata=gateway.metadata()
                )
                return base64.urlsafe_b64encode(answer.cluster_id).rstrip(b"=").decode()
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE or not pauses_s:
                    tls = connector.file is not None and connector.file.tls
                    return reach.Problem(address, _why(error, seen, tls))
        # Behind a balancer: the gateway that it chose may just have gone.
        time.sleep(pauses_s.pop(0))


def _why(error: Any, seen: reach.Problem, tls: bool) -> str:
    """In a few words, why a call failed; gRPC's own are for those who debug it."""
    code = error.code().name
    if code == "UNAUTHENTICATED":
        return "it does not take the user: " + harmless(" ".join((error.details() or code).split()))
    if seen.speaks is not reach.Speaks.GRPC and not tls:
        return seen.reason
    if code == "UNAVAILABLE" and tls:
        return "no TLS with it: is security.protocol right, and ssl.ca.location?"
    if code == "UNIMPLEMENTED":
        return "this is the gRPC port of another role, or of another program"
    if code == "DEADLINE_EXCEEDED":
        return "no answer in time"
    return " ".join((error.details() or code).split())


def _port(address: str) -> int:
    return reach.split_address(address)[1]
