"""Connections to Kafka listeners as a client file says: TLS, and signing in. The one place that does either.

Theory: commands, probes and receipts ask few things on few connections, so a blocking socket with a deadline is
all they need, and a Kafka client library would cost more to load than the question takes. Who connects gets a socket
on which the server has taken the user; what is said on it is up to the caller.

Rules: without a client file nothing of this is loaded. A certificate is always compared with its CA and the name that
was dialled; no setting turns that off.
"""

from __future__ import annotations

import json
import secrets
import socket
import struct
import time
from base64 import urlsafe_b64decode
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import CommandError, ExitCode

if TYPE_CHECKING:
    import ssl

    from penstock_core.security.client_file import ClientFile

CLIENT_ID: Final = b"penstock-cli"
SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36

_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
_UNSUPPORTED_MECHANISM: Final = 33
_ILLEGAL_STATE: Final = 34
_NONCE_BYTES: Final = 24
_TOKEN_LIFE_S: Final = 300.0
"""After so long librdkafka asks for the token file's newer token, at the latest."""


class NoTls(OSError):
    """The server speaks no TLS, or its certificate is refused; the text says which, in a few words."""


class Refused(Exception):
    """The server does not take the user; the text says why, as far as it told."""


class Connector:
    """How to come in at a cluster's listeners. Without a client file: as nobody, in plaintext."""

    def __init__(self, file: ClientFile | None = None) -> None:
        self.file: Final = file

    @cached_property
    def context(self) -> ssl.SSLContext | None:
        """For TLS; None without it. Raises CommandError where a file cannot be used."""
        return None if self.file is None or not self.file.tls else _context(self.file)

    def open(self, host: str, port: int, timeout_s: float) -> socket.socket:
        """A connection with TLS if there is to be any; nobody has signed in on it. Raises OSError, also NoTls."""
        connection = socket.create_connection((host, port), timeout=timeout_s)
        if self.context is None:
            return connection
        import ssl

        try:
            return self.context.wrap_socket(connection, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            connection.close()
            raise NoTls(f"its certificate is refused: {_harmless(error.verify_message)}") from None
        except (ssl.SSLError, ConnectionError, EOFError) as error:
            connection.close()
            raise NoTls(_why_no_tls(error)) from None
        except BaseException:
            connection.close()
            raise

    def sign_in(self, connection: socket.socket) -> None:
        """Sign in on a connection on which ApiVersions may have been asked. Raises OSError and Refused.

        CommandError: a file cannot be read, or not used.
        """
        if self.file is None or self.file.mechanism is None:
            return
        name = self.file.mechanism.encode()
        answer = call(connection, SASL_HANDSHAKE, 1, struct.pack(">h", len(name)) + name)
        (code,) = struct.unpack_from(">h", answer)
        if code == _UNSUPPORTED_MECHANISM:
            raise Refused(
                f"it takes no {self.file.mechanism}, but {', '.join(_strings(answer[2:])) or 'none'}"
            )
        if code == _ILLEGAL_STATE:
            raise Refused("nobody signs in there: leave out SASL in security.protocol")
        if code:
            raise Refused(f"Kafka's error {code} to SaslHandshake")
        self._exchange(connection, self.file)

    def librdkafka(self) -> dict[str, Any]:
        """Settings of a client made with librdkafka, in which it comes in alike."""
        if self.file is None:
            return {}
        settings: dict[str, Any] = {**self.file.librdkafka()}
        if self.file.token_file is not None:
            path = Path(self.file.token_file)

            def newest(_config: str) -> tuple[str, float]:
                token = _token(path)
                return token, min(_expires_s(token), time.time() + _TOKEN_LIFE_S)

            settings["oauth_cb"] = newest
        return settings

    def _exchange(self, connection: socket.socket, file: ClientFile) -> None:
        from penstock_core.security.sasl import OAUTHBEARER, PLAIN, SaslFailure
        from penstock_core.security.scram import MECHANISM_OF
        from penstock_core.security.scram_client import ScramClient

        user, password = file.username or "", file.password or ""
        if file.mechanism == PLAIN:
            _authenticate(connection, b"\0" + user.encode() + b"\0" + password.encode())
            return
        if file.mechanism == OAUTHBEARER:
            token = _token(Path(file.token_file or ""))
            answer = _authenticate(connection, f"n,,\x01auth=Bearer {token}\x01\x01".encode())
            if answer:
                # RFC 7628, 3.2.3: what is wrong comes as JSON; one byte asks for the end of it.
                said = _harmless(answer.decode("utf-8", "replace"))
                raise Refused(f"it does not take the token in {file.token_file} ({said})")
            return
        mechanism = MECHANISM_OF[file.mechanism or ""]
        scram = ScramClient(mechanism, user, password, secrets.token_urlsafe(_NONCE_BYTES))
        try:
            final = scram.final(_authenticate(connection, scram.first()))
            scram.finish(_authenticate(connection, final))
        except SaslFailure as error:
            # A server that does not know the password either: it may be somebody else's.
            raise Refused(f"it did not prove that it knows the user ({error.reason})") from None


PLAINTEXT: Final = Connector()


def load(path: Path) -> Connector:
    """The connector of a client file. Raises CommandError where it cannot be used."""
    try:
        from penstock_core.process.credentials import load_client_file
        from penstock_core.security.client_file import ClientFileError
    except ImportError as error:
        raise CommandError(
            f"client files are read by penstock-core ({error.name} is not installed): pip install 'penstock[native]'"
        ) from None
    try:
        return Connector(load_client_file(path))
    except ClientFileError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None


def call(
    connection: socket.socket, api_key: int, version: int, body: bytes, *, flexible: bool = False
) -> bytes:
    """One request of Kafka's protocol; the response without its header. Raises OSError, also for no such answer."""
    head = struct.pack(">hhih", api_key, version, 1, len(CLIENT_ID)) + CLIENT_ID
    head += b"\x00" if flexible else b""
    connection.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
    (length,) = struct.unpack(">i", exactly(connection, 4))
    if not 4 <= length <= _ANSWER_BYTES_MAX:
        raise ConnectionError(f"an answer of {length} bytes is none of a Kafka broker")
    return exactly(connection, length)[5 if flexible else 4 :]


def exactly(connection: socket.socket, count: int) -> bytes:
    """`count` bytes. Raises ConnectionError where the connection ends before."""
    data = bytearray()
    while len(data) < count:
        chunk = connection.recv(min(count - len(data), 65_536))
        if not chunk:
            raise ConnectionError("the connection was closed")
        data += chunk
    return bytes(data)


def _authenticate(connection: socket.socket, message: bytes) -> bytes:
    """One message of the exchange and the server's (SaslAuthenticate 0)."""
    answer = call(connection, SASL_AUTHENTICATE, 0, struct.pack(">i", len(message)) + message)
    code, length = struct.unpack_from(">hh", answer)
    start = 4 + max(0, length)
    if code:
        raise Refused(_harmless(answer[4:start].decode("utf-8", "replace")) or f"Kafka's error {code}")
    (length,) = struct.unpack_from(">i", answer, start)
    return answer[start + 4 : start + 4 + max(0, length)]


def _context(file: ClientFile) -> ssl.SSLContext:
    import ssl

    from penstock_core.process.credentials import check_private
    from penstock_core.security.client_file import ClientFileError

    try:
        context = ssl.create_default_context(cafile=file.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise _unusable(file, "ssl.ca.location", file.ca_file or "", error) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if file.certificate_file is None or file.key_file is None:
        return context
    try:
        check_private(Path(file.key_file))
        # A key with a password and none given: not to be asked for at the terminal.
        context.load_cert_chain(file.certificate_file, file.key_file, file.key_password or "")
    except ClientFileError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None
    except (OSError, ssl.SSLError) as error:
        raise _unusable(file, "ssl.key.location", file.key_file, error) from None
    return context


def _unusable(file: ClientFile, setting: str, path: str, error: OSError) -> CommandError:
    why = error.strerror if isinstance(error, FileNotFoundError | PermissionError) else "cannot be used"
    return CommandError(
        f"{file.path}: {setting}={path}: {why or error}; give a file in PEM that belongs to the others",
        ExitCode.USAGE,
    )


def _token(path: Path) -> str:
    from penstock_core.process.credentials import read_token
    from penstock_core.security.client_file import ClientFileError

    try:
        return read_token(path)
    except ClientFileError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None


def _expires_s(token: str) -> float:
    """When a token says that it ends, as UNIX time; far away where it does not say."""
    try:
        payload = token.split(".")[1]
        return float(json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["exp"])
    except (IndexError, KeyError, ValueError, TypeError):
        return float("inf")


def _strings(data: bytes) -> list[str]:
    """An array of strings."""
    (count,) = struct.unpack_from(">i", data)
    found, position = [], 4
    for _ in range(count):
        (length,) = struct.unpack_from(">h", data, position)
        found.append(_harmless(data[position + 2 : position + 2 + length].decode("utf-8", "replace")))
        position += 2 + length
    return found


def _why_no_tls(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or ""
    if "WRONG_VERSION" in reason or "RECORD" in reason or not reason:
        return "it speaks no TLS; is security.protocol right, and the port?"
    if "CERTIFICATE_REQUIRED" in reason or "ALERT" in reason:
        return f"it refuses this client's certificate, or that there is none ({_words(reason)})"
    return f"no TLS with it ({_words(reason)})"


def _words(reason: str) -> str:
    return reason.lower().replace("_", " ")


def _harmless(text: str) -> str:
    from penstock.text import harmless

    return harmless(text)
