"""Where an issuer's keys are read: a file, or an https URL. Both block; call them off the loop."""

from __future__ import annotations

import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO, Any, Final, Protocol

from penstock_runtime.oauth_settings import OauthSettings

BYTES_MAX: Final = 1024 * 1024
FETCH_S_MAX: Final = 5.0
"""For one fetch in all; a step of it (to connect, to read something) may take as long."""
_READ_BYTES: Final = 64 * 1024


class NotRead(Exception):
    """The keys cannot be had; the text says why, on one line."""


class JwksSource(Protocol):
    """Where the keys are."""

    look_again_s: float
    """How often it is worth asking."""

    def read(self) -> bytes | None:
        """The document; None: it is as it was when it was last read. Raises NotRead."""
        ...


class FileSource:
    """A file; replaced as a whole, or written in place."""

    look_again_s = 2.0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None

    def read(self) -> bytes | None:
        """See `JwksSource`."""
        try:
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
            if stamp == self._stamp:
                return None
            with open(self._path, "rb") as file:
                document = file.read(BYTES_MAX + 1)
        except OSError as error:
            self._stamp = None
            raise NotRead(error.strerror or str(error)) from None
        _check_size(document)
        self._stamp = stamp
        return document


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class UrlSource:
    """An https URL. Nobody is followed elsewhere."""

    def __init__(self, url: str, ca: Path | None, refresh_s: float) -> None:
        self.look_again_s = refresh_s
        self._url = url
        self._ca = ca

    def read(self) -> bytes | None:
        """See `JwksSource`."""
        until_s = time.monotonic() + FETCH_S_MAX
        try:
            context = ssl.create_default_context(cafile=self._ca)
            opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _Stay())
            with opener.open(self._url, timeout=FETCH_S_MAX) as response:
                return _read_all(response, until_s)
        except urllib.error.HTTPError as error:
            error.close()
            raise NotRead(f"the server answers {error.code}") from None
        except urllib.error.URLError as error:
            raise NotRead(_words(error.reason)) from None
        except NotRead:
            raise
        except Exception as error:  # OSErrors, and those of http.client, which are none
            raise NotRead(_words(error)) from None


def source_of(settings: OauthSettings) -> JwksSource:
    """That of the settings."""
    if settings.is_url:
        return UrlSource(settings.jwks, settings.jwks_ca, settings.jwks_refresh_ms / 1000)
    return FileSource(Path(settings.jwks))


def _read_all(response: IO[bytes], until_s: float) -> bytes:
    document = b""
    while len(document) <= BYTES_MAX:
        more = response.read1(_READ_BYTES) if hasattr(response, "read1") else response.read(_READ_BYTES)
        if not more:
            return document
        if time.monotonic() > until_s:
            raise NotRead(f"it does not come within {FETCH_S_MAX:.0f} s")
        document += more
    _check_size(document)
    return document


def _check_size(document: bytes) -> None:
    if len(document) > BYTES_MAX:
        raise NotRead(f"it is larger than {BYTES_MAX} bytes")


def _words(error: object) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is refused ({error.verify_message}); look at jwks_ca"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__
