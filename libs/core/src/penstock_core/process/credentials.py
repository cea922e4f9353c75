"""Reads the files that say who somebody is: client files, and the tokens that they name.

A file with a secret that others may read is refused: who could read it may be that somebody.
"""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Final

from penstock_core.security.client_file import ClientFile, ClientFileError

FILE_BYTES_MAX: Final = 1 << 20
TOKEN_BYTES_MAX: Final = 64 * 1024


def load_client_file(path: Path) -> ClientFile:
    """Read a client file. Raises ClientFileError, also where it has a secret and others may read it.

    Relative paths in it count from the working directory, as with Kafka's clients; what is not there is looked for
    beside the file.
    """
    text, mode = _read(path, FILE_BYTES_MAX, "client file")
    found = ClientFile.parse(text, str(path))
    if found.has_secrets:
        _check_mode(path, mode)
    return replace(
        found,
        token_file=_beside(path, found.token_file),
        ca_file=_beside(path, found.ca_file),
        certificate_file=_beside(path, found.certificate_file),
        key_file=_beside(path, found.key_file),
    )


def _beside(client_file: Path, place: str | None) -> str | None:
    if place is None:
        return None
    near = client_file.absolute().parent / place
    return str(near) if not Path(place).exists() and near.exists() else place


def read_token(path: Path) -> str:
    """The token in a file, as it is now. Raises ClientFileError, also where others may read it."""
    text, mode = _read(path, TOKEN_BYTES_MAX, "file with a token")
    _check_mode(path, mode)
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ClientFileError(f"{path} has no token in it: write one there, and nothing else")
    return token


def check_private(path: Path) -> None:
    """Raise ClientFileError unless `path` is a file that nobody else may read: a key, say."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise ClientFileError(f"{path}: {error.strerror or error}; give the path of a key") from None
    _check_mode(path, stat.S_IMODE(mode))


def _check_mode(path: Path, mode: int) -> None:
    if mode & 0o077:
        raise ClientFileError(
            f"{path} has a secret in it and mode {mode:04o}, others may read it: run `chmod 600 {path}`"
        )


def read_secret(path: Path, kind: str) -> str:
    """The text of another file that nobody else may read; `kind` says what it is. Raises ClientFileError."""
    text, mode = _read(path, FILE_BYTES_MAX, kind)
    _check_mode(path, mode)
    return text


def _read(path: Path, bytes_max: int, kind: str) -> tuple[str, int]:
    """A file's text and its mode."""
    try:
        # Not to wait for the writer of a pipe that somebody put there.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            seen = os.fstat(handle)
            if not stat.S_ISREG(seen.st_mode):
                raise ClientFileError(f"{path} is no file; give the path of a {kind}")
            with os.fdopen(handle, "rb", closefd=False) as opened:
                data = opened.read(bytes_max + 1)
        finally:
            os.close(handle)
    except OSError as error:
        raise ClientFileError(f"{path}: {error.strerror or error}; give the path of a {kind}") from None
    if len(data) > bytes_max:
        raise ClientFileError(f"{path} has more than {bytes_max} bytes: is it a {kind}?")
    try:
        return data.decode("utf-8-sig"), stat.S_IMODE(seen.st_mode)
    except UnicodeDecodeError:
        raise ClientFileError(f"{path} is not UTF-8; save it as such") from None
