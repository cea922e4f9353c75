"""Channels to gateways' gRPC ports, as a client file says: TLS, and a token with each call.

Without a client file: as nobody, in plaintext. gRPC is loaded by those who call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from penstock.connector import PLAINTEXT, Connector
from penstock.errors import CommandError, ExitCode
from penstock.text import harmless

CHANNEL_OPTIONS: Final = (("grpc.max_receive_message_length", 16 * 1024 * 1024),)
"""As much as a gateway sends: gRPC's own 4 MiB are too few for a large cluster's plan."""


@dataclass(frozen=True, slots=True)
class NativeGateway:
    """One gateway, on an open channel."""

    stub: Any
    account: Any = None
    """`penstock_core.process.native_account.Account`; None for nobody."""
    admin: Any = None
    """Stub of the service `Admin`."""

    def metadata(self) -> Any:
        """For one call. Signs in when it is time to; raises grpc.RpcError, and CommandError for a bad file or a
        gateway that does not know the user's password."""
        if self.account is None:
            return ()
        from penstock_core.security.client_file import ClientFileError
        from penstock_core.security.sasl import SaslFailure

        try:
            return self.account.metadata(self.stub.Authenticate)
        except ClientFileError as error:
            raise CommandError(str(error), ExitCode.USAGE) from None
        except SaslFailure as error:
            raise CommandError(
                f"the gateway did not prove that it knows the user ({harmless(error.reason)})",
                ExitCode.UNREACHABLE,
            ) from None


@contextmanager
def open_gateway(address: str, connector: Connector = PLAINTEXT) -> Iterator[NativeGateway]:
    """The gateway at HOST:PORT. Raises CommandError where the client file cannot be used."""
    import grpc

    from penstock_proto.v1 import admin_pb2_grpc, gateway_pb2_grpc

    if connector.file is None:
        with grpc.insecure_channel(address, CHANNEL_OPTIONS) as channel:
            stub = gateway_pb2_grpc.GatewayStub(channel)
            yield NativeGateway(stub, admin=admin_pb2_grpc.AdminStub(channel))
        return
    from penstock_core.process.native_account import Account
    from penstock_core.security.client_file import ClientFileError

    account = Account(connector.file)
    try:
        pems = account.pems()
    except ClientFileError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None
    opened = (
        grpc.insecure_channel(address, CHANNEL_OPTIONS)
        if pems is None
        else grpc.secure_channel(address, grpc.ssl_channel_credentials(*pems), CHANNEL_OPTIONS)
    )
    with opened as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)
        yield NativeGateway(stub, account, admin_pb2_grpc.AdminStub(channel))
