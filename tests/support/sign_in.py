"""Users in an image of the metadata, and a raw client that signs in."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from penstock_core.metadata.image import MetadataImage
from penstock_core.security.scram import ScramMechanism, credential
from penstock_core.security.scram_client import ScramClient
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import request_header
from penstock_proto.v1 import metadata_pb2 as pb

SALT = b"0123456789abcdef"


class Metadata:
    """What a doorkeeper and its desk ask of a metadata client."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self._secret = pb.MetadataRecord(
            cluster_secret=pb.ClusterSecretRecord(name="sign-in", value=b"s" * 32)
        )
        self.apply(self._secret)

    def apply(self, *records: pb.MetadataRecord) -> tuple[MetadataImage, MetadataImage]:
        """The image of before and the one after."""
        old, version = self.image, self.image.version + 1
        for record in records:
            if record.HasField("user_credential"):
                record.user_credential.version = version
        self.image = old.apply(records, version)
        return old, self.image


def user_record(
    user: str, password: str, mechanism: ScramMechanism = ScramMechanism.SHA_256, iterations: int = 4096
) -> pb.MetadataRecord:
    """The credential of a user."""
    salted = mechanism.salted_password(password.encode(), SALT, iterations)
    made = credential(mechanism, SALT, salted, iterations)
    return pb.MetadataRecord(
        user_credential=pb.UserCredentialRecord(
            user=user,
            mechanism=mechanism,
            salt=made.salt,
            stored_key=made.stored_key,
            server_key=made.server_key,
            iterations=iterations,
        )
    )


def removal(user: str, mechanism: ScramMechanism = ScramMechanism.SHA_256) -> pb.MetadataRecord:
    """That it is no more."""
    return pb.MetadataRecord(
        user_credential_removed=pb.UserCredentialRemovedRecord(user=user, mechanism=mechanism)
    )


class RawClient:
    """A client by its streams; requests by name."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._id = 100

    def send(self, api_key: int, version: int, **fields: Any) -> int:
        """Send a request; its correlation id."""
        self._id += 1
        body = codec.encode_body(codec.build(codec.request_type(api_key, version), **fields))
        self.send_raw(request_header(api_key, version, self._id, "raw") + body)
        return self._id

    def send_raw(self, frame: bytes) -> None:
        """Send what a length stands before."""
        self.writer.write(struct.pack(">i", len(frame)) + frame)

    async def receive_raw(self) -> bytes:
        """What a length stands before. Raises IncompleteReadError at the end."""
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(length)

    async def ask(self, api_key: int, version: int, **fields: Any) -> Any:
        """The answer to a request."""
        sent = self.send(api_key, version, **fields)
        got, response = codec.decode_response(api_key, version, await self.receive_raw())
        assert got == sent
        return response

    async def handshake(self, mechanism: str, version: int = 1) -> Any:
        """SaslHandshake."""
        return await self.ask(ApiKey.SASL_HANDSHAKE, version, mechanism=mechanism)

    async def token(self, token: bytes, version: int = 2) -> Any:
        """SaslAuthenticate."""
        return await self.ask(ApiKey.SASL_AUTHENTICATE, version, auth_bytes=token)

    async def plain(self, user: str, password: str, version: int = 2) -> Any:
        """Handshake and token of PLAIN; the last answer."""
        assert (await self.handshake("PLAIN")).error_code == 0
        return await self.token(plain_token(user, password), version)

    async def scram(
        self, user: str, password: str, mechanism: ScramMechanism = ScramMechanism.SHA_256
    ) -> Any:
        """The whole of SCRAM; the last answer, which was looked at if it is none of a failure."""
        assert (await self.handshake(mechanism.mechanism_name)).error_code == 0
        client = ScramClient(mechanism, user, password, "n" * 20)
        first = await self.token(client.first())
        if first.error_code:
            return first
        last = await self.token(client.final(bytes(first.auth_bytes)))
        if not last.error_code:
            client.finish(bytes(last.auth_bytes))
        return last

    async def ended(self) -> bool:
        """Whether the other side has closed, without a word more."""
        try:
            return await asyncio.wait_for(self.reader.read(1), 60) == b""
        except ConnectionError:
            return True


def plain_token(user: str, password: str) -> bytes:
    """PLAIN's one message."""
    return b"\0" + user.encode() + b"\0" + password.encode()
