"""Settings of a role: flags over environment over TOML file over defaults.

One name everywhere: field `data_dir` is the flag `--data-dir`, the variable
`PENSTOCK_DATA_DIR` and the TOML key `data_dir`. Lists are JSON or, for plain strings,
comma-separated. Unknown flags and TOML keys are errors; unknown `PENSTOCK_*` variables
are ignored, because one environment often serves several roles.

Every problem is one line that names the flag, variable or key and the mend.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings.exceptions import SettingsError as SourceError

from penstock_core.addresses import Address, parse_address, parse_member
from penstock_core.racks import check_rack
from penstock_runtime.addresses import Plaintext, StartupError
from penstock_runtime.grpc_bounds import GrpcBounds
from penstock_runtime.kafka_names import dotted_names, hint
from penstock_runtime.listener_settings import ListenerSettings
from penstock_runtime.security.role_tls import RoleTls
from penstock_runtime.version import VERSION

__all__ = [
    "Address",
    "ListenerSettings",
    "RoleSettings",
    "StartupError",
    "load_settings",
    "parse_address",
    "parse_member",
]

ENV_PREFIX = "PENSTOCK_"
_PORTS = ("grpc", "raft", "http")
_SECRET_WORDS = ("password", "secret", "token", "private")


class RoleSettings(BaseSettings):
    """What every role can be told."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_ignore_empty=False,
        extra="forbid",
        frozen=True,
        enable_decoding=False,
        validate_default=True,
    )

    example: ClassVar[str] = ""
    """A command line for `--help`."""

    config: Path | None = Field(default=None, description="TOML file with settings by the same names")
    data_dir: Path = Field(default=Path("data"), description="directory that this process owns")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="least level logged"
    )
    log_format: Literal["console", "json"] = Field(
        default="console", description="for people or for machines"
    )
    grpc_bind: str = Field(
        default="127.0.0.1:0", description="address of the gRPC services; port 0 takes a free one"
    )
    grpc_advertised: str = Field(
        default="auto", description="gRPC address told to other roles; auto = the bound one"
    )
    grpc_connections_max: int = Field(
        default=GrpcBounds.connections_max, ge=1, description="most connections of the gRPC port"
    )
    grpc_connections_per_address_max: int = Field(
        default=GrpcBounds.connections_per_address_max,
        ge=1,
        description="most of them from one address; roles with a certificate are never ended for it",
    )
    grpc_strangers_max: int = Field(
        default=GrpcBounds.strangers_max,
        ge=1,
        description="most of them by which nobody has made a call yet; the oldest make room",
    )
    http_bind: str = Field(default="127.0.0.1:0", description="address of health and metrics; empty for none")
    health_bind: str = Field(
        default="",
        description="address where /healthz and /readyz say 200 or 503 and nothing else, for balancers; empty for none",
    )
    controllers: list[str] = Field(
        default_factory=list, description="gRPC addresses of all controllers, [ID@]host:port"
    )
    tls: RoleTls | None = Field(
        default=None,
        description="this process's certificate, for what roles say to each other: cert, key, ca, key_password_file",
    )
    rack: str = Field(
        default="",
        description="failure domain of this process: ZONE, or a path such as ZONE/HOST or ZONE/ROW/HOST",
    )
    audit_log: str = Field(
        default="auto",
        description="file of the audit log, JSON lines; stderr; empty for none; auto = stderr where callers are known",
    )
    audit_log_max_bytes: int = Field(
        default=100 * 1024 * 1024,
        ge=0,
        description="size at which that file is renamed and a new one begun, in bytes; 0 = never",
    )
    audit_log_files: int = Field(
        default=10, ge=0, le=1_000, description="how many renamed files of the audit log are kept"
    )
    otel_sample_ratio: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="part of all requests and commands that is traced by OpenTelemetry; 0 = none",
    )
    otel_endpoint: str = Field(
        default="",
        description="http://HOST:PORT of the OTLP collector for them; empty = what OTEL_EXPORTER_OTLP_ENDPOINT says",
    )
    allow_plaintext: list[str] = Field(
        default_factory=list,
        description="ports that may be plaintext though other machines reach them: grpc, raft, http, listener:NAME",
    )
    allow_insecure_bind: bool = Field(
        default=False, description="permit plaintext on every port; better name them in allow_plaintext"
    )
    allow_failpoints: bool = Field(
        default=False,
        description="permit PENSTOCK_FAILPOINTS to make this process fail on purpose; for tests",
    )
    shutdown_timeout_ms: int = Field(
        default=10_000, ge=0, description="most time for draining after TERM, in ms"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags (as init values), environment, TOML."""
        path = init_settings().get("config") or env_settings().get("config")
        toml = InitSettingsSource(settings_cls, _read_toml(path) if path else {})
        return init_settings, env_settings, toml

    @field_validator("*", mode="before")
    @classmethod
    def _decode_text(cls, value: object, info: Any) -> object:
        """Lists and tables that came as text from a flag or the environment."""
        if not isinstance(value, str):
            return value
        field = cls.model_fields[info.field_name]
        return _decode(value, field)

    @field_validator("log_level", mode="before")
    @classmethod
    def _upper(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value

    @field_validator("grpc_bind")
    @classmethod
    def _check_grpc_bind(cls, value: str) -> str:
        parse_address(value)
        return value

    @field_validator("grpc_advertised")
    @classmethod
    def _check_grpc_advertised(cls, value: str) -> str:
        if value != "auto":
            parse_address(value)
        return value

    @field_validator("http_bind", "health_bind")
    @classmethod
    def _check_http_bind(cls, value: str) -> str:
        if value:
            parse_address(value)
        return value

    @field_validator("otel_endpoint")
    @classmethod
    def _check_otel_endpoint(cls, value: str) -> str:
        if value and not value.startswith(("http://", "https://")):
            raise ValueError(f"{value!r} is no http://HOST:PORT")
        return value

    @field_validator("rack")
    @classmethod
    def _check_rack(cls, value: str) -> str:
        return check_rack(value)

    @field_validator("allow_plaintext")
    @classmethod
    def _check_allow_plaintext(cls, value: list[str]) -> list[str]:
        for port in value:
            if port not in _PORTS and not port.startswith("listener:"):
                raise ValueError(f"{port!r} is no port; use {', '.join(_PORTS)} or listener:NAME")
        return value

    @field_validator("controllers")
    @classmethod
    def _check_controllers(cls, value: list[str]) -> list[str]:
        for member in value:
            parse_member(member)
        return value

    @model_validator(mode="after")
    def _check_listener_names(self) -> RoleSettings:
        names = [listener.name for listener in getattr(self, "listeners", ())]
        doubled = {name for name in names if names.count(name) > 1}
        if doubled:
            raise ValueError(f"listeners: two have the name {doubled.pop()}; names are unique")
        return self

    @property
    def grpc_bounds(self) -> GrpcBounds:
        """What others may take of the gRPC port."""
        return GrpcBounds(
            connections_max=self.grpc_connections_max,
            connections_per_address_max=self.grpc_connections_per_address_max,
            strangers_max=self.grpc_strangers_max,
            calls_max=0,
        )

    @property
    def plaintext(self) -> Plaintext:
        """Ports that may be plaintext where other machines reach them."""
        return self.allow_insecure_bind or frozenset(self.allow_plaintext)

    @property
    def knows_callers(self) -> bool:
        """Whether this process looks at who comes: then there is something to audit."""
        return self.tls is not None

    def printable(self) -> dict[str, object]:
        """Effective settings for the log, without secrets."""
        dumped = self.model_dump(mode="json", exclude={"config"} if self.config is None else set())
        hidden = {
            name: "***"
            for name, field in type(self).model_fields.items()
            if name in dumped and _is_secret(name, field) and dumped[name]
        }
        return {name: _without_secrets(value) for name, value in (dumped | hidden).items()}


S = TypeVar("S", bound=RoleSettings)


def load_settings(cls: type[S], argv: Sequence[str] | None, role_name: str) -> S:
    """Settings from `argv` (None: the process's own), environment and TOML.

    Raises StartupError with one line per problem. `--help` and `--version` print and
    end the process (SystemExit 0).
    """
    flags = _parse_flags(cls, argv, role_name)
    try:
        return cls(**flags)
    except ValidationError as e:
        raise StartupError("\n".join(_problems(cls, e, flags))) from None
    except SourceError as e:
        raise StartupError(f"environment: {e}") from None


class _Parser(argparse.ArgumentParser):
    """argparse that raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments:"):
            words = message.partition(":")[2].split()
            flag = words[0].partition("=")[0] if words else ""
            known = [s for a in self._actions for s in a.option_strings]
            near = difflib.get_close_matches(flag, known, n=1)
            kafka = hint(flag.removeprefix("--"), [a.dest for a in self._actions], _flag)
            message = f"unknown flag {flag}"
            if kafka is not None:
                message += f": {kafka}"
            elif near:
                message += f"; did you mean {near[0]}?"
        raise StartupError(f"{message}; {self.prog} --help lists all flags")


def _parse_flags(cls: type[RoleSettings], argv: Sequence[str] | None, role_name: str) -> dict[str, Any]:
    command = f"penstock-{role_name}"
    description = (cls.__doc__ or "").strip() + (
        "\n\nEach flag --some-name is also the variable PENSTOCK_SOME_NAME and the key some_name of the "
        "TOML\nfile given by --config; a flag wins over the variable, the variable over the file."
    )
    parser = _Parser(
        prog=command,
        description=description,
        epilog=f"example:\n  {cls.example}" if cls.example else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--version", action="version", version=f"{command} {VERSION}")
    for name, field in cls.model_fields.items():
        flag = _flag(name)
        text = _help_text(field)
        if field.annotation is bool:
            parser.add_argument(flag, dest=name, nargs="?", const="true", metavar="BOOL", help=text)
        elif get_origin(field.annotation) is list:
            parser.add_argument(flag, dest=name, action="append", metavar="LIST", help=text)
        else:
            parser.add_argument(flag, dest=name, metavar=_metavar(field), help=text)
    flags = vars(parser.parse_args(argv))
    for name, value in flags.items():
        if isinstance(value, list):
            flags[name] = value[0] if len(value) == 1 else _merge_lists(cls.model_fields[name], value)
    return flags


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _merge_lists(field: FieldInfo, texts: list[str]) -> list[Any]:
    """A list flag that was given several times adds up."""
    merged: list[Any] = []
    for text in texts:
        try:
            part = _decode(text, field)
        except ValueError as e:
            raise StartupError(str(e)) from None
        merged.extend(part if isinstance(part, list) else [part])
    return merged


def _help_text(field: FieldInfo) -> str:
    text = (field.description or "").replace("%", "%%")
    if field.is_required():
        return f"{text} (required)".strip()
    default = field.get_default(call_default_factory=True, validated_data={})
    if default in (None, "", []):
        return text
    shown = json.dumps(default) if isinstance(default, bool) else str(default)
    if isinstance(default, list):
        shown = ",".join(str(getattr(item, "name", item)) for item in default)
    return f"{text} (default {shown})".strip().replace("%%", "%").replace("%", "%%")


def _metavar(field: FieldInfo) -> str:
    if get_origin(field.annotation) is Literal:
        return "{" + ",".join(str(a) for a in get_args(field.annotation)) + "}"
    kinds = [a for a in (get_args(field.annotation) or (field.annotation,)) if a is not type(None)]
    return {int: "N", float: "N", Path: "PATH"}.get(kinds[0], "TEXT") if kinds else "TEXT"


def _table_of(field: FieldInfo | None) -> type[BaseModel] | None:
    """The model of a setting that is one table, or a list of tables."""
    annotation = field.annotation if field is not None else None
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _decode(text: str, field: FieldInfo) -> object:
    origin = get_origin(field.annotation)
    if origin is not list and _table_of(field) is not None:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as e:
            raise ValueError(f"give it as JSON ({e})") from None
    if origin not in (list, tuple, dict):
        return text
    stripped = text.strip()
    if stripped[:1] in ("[", "{"):
        try:
            value = json.loads(stripped)
        except (ValueError, RecursionError) as e:
            raise ValueError(f"not JSON: {e}") from None
        return [value] if origin is not dict and isinstance(value, dict) else value
    if origin is not dict and get_args(field.annotation)[0] in (str, int):
        return [part.strip() for part in stripped.split(",") if part.strip()]
    if not stripped:
        return {} if origin is dict else []
    raise ValueError("give it as JSON")


def _read_toml(path: object) -> dict[str, Any]:
    try:
        with open(str(path), "rb") as f:
            return tomllib.load(f)
    except OSError as e:
        raise StartupError(f"config file {path}: {e.strerror}; --config names a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise StartupError(f"config file {path} is not TOML: {e}") from None


def _is_secret(name: str, field: FieldInfo) -> bool:
    return field.annotation is SecretStr or any(word in name for word in _SECRET_WORDS)


def _without_secrets(value: object) -> object:
    """A value as it may be shown. In tables, too, names tell what is a secret; paths of files are none."""
    if isinstance(value, dict):
        return {
            name: "***"
            if inner and not name.endswith("_file") and any(word in name for word in _SECRET_WORDS)
            else _without_secrets(inner)
            for name, inner in value.items()
        }
    return [_without_secrets(each) for each in value] if isinstance(value, list) else value


def _problems(cls: type[RoleSettings], error: ValidationError, flags: Mapping[str, Any]) -> list[str]:
    return [_problem(cls, e, flags) for e in error.errors(include_url=False, include_context=False)]


def _problem(cls: type[RoleSettings], e: ErrorDetails, flags: Mapping[str, Any]) -> str:
    """One line for one thing that is wrong."""
    message = e["msg"].removeprefix("Value error, ")
    if not e["loc"]:
        return message
    name = str(e["loc"][0])
    rest = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in e["loc"][1:] if p not in ("str",))
    flag = _flag(name)
    variable = ENV_PREFIX + name.upper()
    if e["type"] == "extra_forbidden":
        table = _table_of(cls.model_fields.get(name)) or ListenerSettings
        known = list(cls.model_fields) if len(e["loc"]) == 1 else list(table.model_fields)
        wrong = str(e["loc"][-1])
        near = difflib.get_close_matches(wrong, known, n=1)
        if len(e["loc"]) == 1:
            kafka = [h for n in dotted_names(wrong, e["input"]) if (h := hint(n, known)) is not None]
            if kafka:
                return f"unknown key {wrong!r}: {'; '.join(kafka)}"
        where = f"key {wrong!r}" if len(e["loc"]) == 1 else f"{name}{rest}"
        return f"unknown {where}" + (f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}")
    if e["type"] == "missing" and len(e["loc"]) == 1:
        return f"{flag} is missing; give it, or {variable}, or {name} in the TOML file"
    if name in flags:
        source = flag + rest
    elif any(key.upper() == variable for key in os.environ):
        source = variable + rest
    else:
        source = f"{name}{rest} in the TOML file"
    field = cls.model_fields.get(name)
    # Tables are shown by name alone: what is in them may be a secret, and where one cannot be read nobody knows.
    secret = field is not None and (
        _is_secret(name, field) or len(e["loc"]) > 1 or _table_of(field) is not None
    )
    shown = "" if secret or e["type"] == "missing" else f" = {_brief(e['input'])}"
    return f"{source}{shown}: {message[:1].lower()}{message[1:]}"


def _brief(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
