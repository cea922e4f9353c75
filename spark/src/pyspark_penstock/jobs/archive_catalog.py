"""The file that names an Iceberg catalog, and the catalog itself, without saying what is secret in it.

    name = "lake"                               as its other users call the catalog

    [properties]                                PyIceberg's, of a catalog and of its files
    type = "sql"
    uri = "sqlite:////data/lake/catalog.db"
    warehouse = "file:///data/lake"

PyIceberg is imported here and in archive_iceberg, and only when a table is asked for. It adds what it finds itself
under that name (PYICEBERG_CATALOG__LAKE__TOKEN, .pyiceberg.yaml); the file goes before these.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock_core.process.credentials import read_secret
from penstock_core.security.client_file import ClientFileError
from pyspark_penstock.errors import OptionError, PenstockError
from pyspark_penstock.jobs.frame import JobError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_PLAIN: Final = {"type", "uri", "warehouse", "prefix"}
"""Properties that an error may quote, `uri` without its password and its query. All others count as secret: which of
them are depends on the catalog, and on its version."""
_PLAIN_ENDS: Final = (".endpoint", ".region")
_REASON_CHARS_MAX: Final = 200
"""Of either end."""


@dataclass(frozen=True, slots=True)
class CatalogFile:
    """A catalog as its file says."""

    path: str
    name: str
    properties: dict[str, str] = field(repr=False)

    @classmethod
    def read(cls, path: str) -> CatalogFile:
        """Raises OptionError, also where others than its owner may read it."""
        try:
            form = tomllib.loads(read_secret(Path(path), "file that names an Iceberg catalog"))
        except ClientFileError as error:
            raise OptionError(str(error)) from None
        except (tomllib.TOMLDecodeError, RecursionError):
            # Its text may quote the line.
            raise OptionError(f"{path} is no TOML; correct it") from None
        name, properties = form.get("name"), form.get("properties")
        if not isinstance(name, str) or not name or not isinstance(properties, dict) or len(form) > 2:
            raise OptionError(
                f'{path} has to hold name = "..." and a table [properties] with those of PyIceberg\'s catalog, and '
                "nothing else"
            )
        return cls(path, name, dict(_flat(properties, path)))

    @contextmanager
    def opened(self) -> Iterator[Catalog]:
        """The catalog, connected. Raises JobError."""
        try:
            from pyiceberg.catalog import load_catalog
        except ImportError as error:
            raise JobError(
                f"an Iceberg table takes PyIceberg ({error.name or error} is not installed): "
                "pip install 'penstock-spark[iceberg]'"
            ) from None
        with self.explained("cannot be opened"):
            catalog = load_catalog(self.name, **self.properties)
        with catalog:
            yield catalog

    @contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """What is done with the catalog meanwhile fails with one sentence, without a secret. Raises JobError."""
        try:
            yield
        except PenstockError:
            raise
        # Each kind of catalog, and of storage, has errors of its own, of libraries that need not be there.
        except Exception as error:
            raise JobError(
                f"catalog {self.name} of {self.path} {what} ({self._reason(error)}); see that it is reached from here "
                "and that its properties are right, and run it again: it goes on where it was"
            ) from None

    def _reason(self, error: Exception) -> str:
        lines = str(error).strip().splitlines()
        text = f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__
        for each in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(each, "***")
        text = re.sub(r"//[^/@\s]*@", "//***@", text)
        if len(text) > 2 * _REASON_CHARS_MAX:  # what was wrong stands first, and why, last
            text = f"{text[:_REASON_CHARS_MAX]} ... {text[-_REASON_CHARS_MAX:]}"
        return text

    def _secrets(self) -> set[str]:
        """What no error may quote."""
        from pyiceberg.utils.config import Config

        known = dict(_strings(Config().get_catalog_config(self.name) or {})) | self.properties
        found: set[str] = set()
        for name, value in known.items():
            if name not in _PLAIN and not name.endswith(_PLAIN_ENDS):
                found.add(value)
                if name == "credential":  # an id and a secret
                    found |= set(value.split(":"))
            else:
                found |= _of_uri(value)
        return found - {"", "true", "false"}


def _of_uri(text: str) -> set[str]:
    """A URI's password, as it stands there and as it is meant, and what its query says."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return {text}
    said = {value for _, value in parse_qsl(parts.query)}
    return said | ({parts.password, unquote(parts.password)} if parts.password else set())


def _flat(table: Mapping[str, Any], path: str, before: str = "") -> Iterator[tuple[str, str]]:
    """Properties by their whole names: to TOML `s3.endpoint` is a table in a table."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, path, f"{before}{name}.")
        elif isinstance(value, bool):
            yield f"{before}{name}", str(value).lower()
        elif isinstance(value, str | int):
            yield f"{before}{name}", str(value)
        else:
            raise OptionError(
                f"{path}: property {before}{name} has to be a string, a whole number, true or false"
            )


def _strings(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    return ((name, value) for name, value in table.items() if isinstance(value, str))
