"""The doors of a role's listeners, from their settings: TLS contexts, doorkeepers, and what watches over them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypedDict

from penstock_core.security.acl import AclOperation, ResourceType
from penstock_core.security.principal import Identity, Principal
from penstock_core.security.sasl import OAUTHBEARER, PLAIN
from penstock_frontend.acl_authorizer import AclAuthorizer
from penstock_frontend.listener.connection import Connection, FrameHandler
from penstock_frontend.listener.listener import KafkaListener
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_frontend.sign_in.callers import CallerDoor
from penstock_frontend.sign_in.certified import Certified, Holders
from penstock_frontend.sign_in.credentials import end_soon
from penstock_frontend.sign_in.desk import SignInDesk
from penstock_frontend.sign_in.doorkeeper import AnswerVersions, Doorkeeper
from penstock_frontend.sign_in.old_news import OldNews
from penstock_runtime.audit import audit_of
from penstock_runtime.door import DoorSettings
from penstock_runtime.door_settings import GrpcDoorSettings, HttpDoorSettings
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.logs import CONSTANT
from penstock_runtime.metadata_client import NEVER_MS, MetadataClient
from penstock_runtime.oauth_settings import OauthSettings
from penstock_runtime.ports import wall_ms
from penstock_runtime.security.listener_tls import ListenerTlsFiles
from penstock_runtime.security.own_certificate import say_renewed
from penstock_runtime.security.refused import RefusedCertificates
from penstock_runtime.security.role_tls import HTTP2
from penstock_runtime.security.token_validator import open_token_validator
from penstock_runtime.settings import ListenerSettings

GRPC: Final = "grpc"
HTTP: Final = "http"
"""Doors beside the listeners, which have names in capitals."""
WARN_BEFORE_S: Final = 14 * 24 * 3600
_LOOK_S: Final = 3600.0
_NEWS_LOOK_S: Final = 0.25
_WARN_EVERY_S: Final = 24 * 3600


_NO_METADATA: Final = "no metadata came yet"


def _never() -> str:
    return ""


class Door(TypedDict, total=False):
    """What a listener needs beside its settings."""

    doorkeeper: FrameHandler
    tls: Callable[[], ssl.SSLContext]
    certified: Callable[[bytes | None, Connection], Principal]
    keeps_out: Callable[[], str]
    may_write: Callable[[Identity], bool]


class Doors:
    """Those of one role."""

    def __init__(
        self,
        listeners: Iterable[ListenerSettings],
        lifecycle: Lifecycle,
        oauth: OauthSettings | None = None,
        *,
        grpc: GrpcDoorSettings | None = None,
        http: HttpDoorSettings | None = None,
        stale_ms: tuple[int, int] = (NEVER_MS, NEVER_MS),
    ) -> None:
        """Load certificates, rules and, for `oauth`, keys of tokens. Raises StartupError.

        `stale_ms`: how old the metadata may be for signing in, and for being served (see `old_news`).
        """
        self._stale_ms = stale_ms
        self._authorizer: AclAuthorizer | None = None
        self._grace_ms = 0
        self._news: OldNews | None = None
        self._caller_doors: list[CallerDoor] = []
        self._grpc, self._http = grpc or GrpcDoorSettings(), http or HttpDoorSettings()
        self._lifecycle = lifecycle
        self._tokens = open_token_validator(oauth, lifecycle)
        self._listeners = list(listeners)
        self._files: dict[str, ListenerTlsFiles] = {}
        self._certified: dict[str, Certified] = {}
        self._desk: SignInDesk | None = None
        self._refused = RefusedCertificates()
        self._holders = Holders(self._refused)
        for each in self._listeners:
            if each.tls is not None:
                self._files[each.name] = ListenerTlsFiles(each.name, each.tls)
                if each.tls.client_auth != "none":
                    rules = None if each.has_sasl else each.principal_mapping_rules
                    self._certified[each.name] = Certified(each.name, rules, self._holders)
        for name, door in ((GRPC, self._grpc), (HTTP, self._http)):
            if door.tls is not None:
                self._files[name] = ListenerTlsFiles(name, door.tls, protocol=HTTP2 if name == GRPC else "")

    def connect(
        self,
        metadata: MetadataClient,
        answer_versions: AnswerVersions,
        authorizer: AclAuthorizer | None = None,
        grace_ms: int = 0,
    ) -> None:
        """Have users from the metadata. To be called before `of`.

        `authorizer` is told, `grace_ms` later, when they are too old. Without it listeners without users go on.
        """
        self._authorizer, self._grace_ms = authorizer, grace_ms
        self._answer_versions = answer_versions
        self._metadata = metadata
        news = OldNews(metadata.contact_age_ms, *self._stale_ms)
        doors = (self._grpc, self._http)
        door_users = any(each.has_sasl or each.takes_certificates for each in doors)
        if self._authorizer is not None or door_users or any(map(self._has_users, self._listeners)):
            self._news = news
            # At once, not at the next look: with these news the process may get something to serve.
            metadata.on_change(lambda _, __, ___: self._judge(news))
        refused = self._refused
        metadata.on_change(lambda _, new, __: refused.take(new.security.refused_certificates))
        if not any(each.has_sasl for each in self._listeners) and not any(each.has_sasl for each in doors):
            return
        lifecycle = self._lifecycle
        self._desk = desk = SignInDesk(
            lambda: metadata.image,
            KafkaMetrics.of(lifecycle),
            lifecycle.log.bind(part="sign-in"),
            tokens=self._tokens,
            keeps_out=news.keeps_out,
        )
        metadata.on_change(lambda old, new, _: desk.signed_in.on_metadata(old, new))
        lifecycle.at_end(desk.passwords.close)

    def of(self, settings: ListenerSettings) -> Door:
        """The door of a listener."""
        door: Door = {}
        if settings.has_sasl:
            assert self._desk is not None
            door["doorkeeper"] = Doorkeeper(
                self._desk, settings.mechanisms, settings.max_reauth_ms, self._answer_versions
            )
        if settings.name in self._files:
            door["tls"] = self._files[settings.name].context
        if settings.name in self._certified:
            door["certified"] = self._certified[settings.name]
        door["keeps_out"] = self._keeps_out(settings)
        by_acl = self._authorizer
        if by_acl is not None:
            door["may_write"] = lambda who: by_acl.authorize_by_resource_type(
                who, AclOperation.WRITE, ResourceType.TOPIC
            )
        return door

    def _keeps_out(self, settings: ListenerSettings) -> Callable[[], str]:
        """Why nobody may come: before the first metadata there is nothing to answer with, and clients take an empty
        cluster badly. Later, where users and rights are looked at, when these are too old."""
        metadata, stale = self._metadata, _never
        if self._news is not None and self._is_bound(settings):
            stale = self._news.keeps_out if self._has_users(settings) else self._news.ends
        return lambda: stale() if metadata.image.version else _NO_METADATA

    def grpc_door(self) -> CallerDoor:
        """The native API's. Raises StartupError."""
        settings = self._grpc
        return self._caller_door(GRPC, settings, settings.offered, settings.token_lifetime_ms)

    def http_door(self) -> CallerDoor:
        """That of the HTTP port. Raises StartupError."""
        return self._caller_door(HTTP, self._http, self._http.offered, 0)

    def tls_files(self, name: str) -> ListenerTlsFiles | None:
        """Those of a listener or of another door; None where it has no TLS."""
        return self._files.get(name)

    def _caller_door(
        self, name: str, settings: DoorSettings, mechanisms: tuple[str, ...], token_lifetime_ms: int
    ) -> CallerDoor:
        metadata = self._metadata
        door = CallerDoor(
            name,
            settings,
            self._desk if settings.has_sasl else None,
            lambda: metadata.image,
            mechanisms,
            token_lifetime_ms=token_lifetime_ms,
            holders=self._holders,
            news=self._news,
            audit=audit_of(self._lifecycle),
        )
        metadata.on_change(lambda old, new, _: door.present.on_metadata(old, new))
        self._caller_doors.append(door)
        return door

    @staticmethod
    def _has_users(settings: ListenerSettings) -> bool:
        return settings.has_sasl or (settings.tls is not None and settings.tls.client_auth != "none")

    def _is_bound(self, settings: ListenerSettings) -> bool:
        """Whether what its clients may do comes with the metadata."""
        return self._authorizer is not None or self._has_users(settings)

    def start(self, listeners: Iterable[KafkaListener]) -> None:
        """Watch over the files, and the age of the metadata, from now on; say what an operator should know."""
        if self._news is not None:
            bound = [each for each in listeners if self._is_bound(each.settings)]
            self._lifecycle.create_task(self._watch_news(self._news, bound), "age of users and rights")
        lifecycle = self._lifecycle
        metrics = KafkaMetrics.of(lifecycle)
        for each in self._listeners:
            self._warn_of_secrets(each.name, each.mechanisms, each.has_tls)
        for name, port in ((GRPC, self._grpc), (HTTP, self._http)):
            self._warn_of_secrets(name, port.offered, port.has_tls)
        if self._tokens is not None:
            self._tokens.start(lifecycle)
        for name, files in self._files.items():
            metrics.certificate_ends_s[name] = lambda files=files: files.current.not_after_s  # type: ignore[misc]
            lifecycle.create_task(self._watch(name, files), f"certificate of {name}")
        if self._files:
            lifecycle.create_task(self._warn(), "ends of certificates")

    def check_names(self, name: str, hosts: Iterable[str]) -> None:
        """Warn of advertised hosts that the listener's certificate does not have: clients refuse it there."""
        files = self._files.get(name)
        if files is None:
            return
        names = files.current.names
        for host in hosts:
            if host and not any(covers(name, host) for name in names):
                self._lifecycle.log.warning(
                    "the certificate does not have an advertised name: clients will refuse it",
                    listener=name,
                    host=host,
                    names=",".join(names),
                )

    def _warn_of_secrets(self, name: str, mechanisms: Iterable[str], has_tls: bool) -> None:
        for mechanism, secrets in ((PLAIN, "passwords"), (OAUTHBEARER, "tokens")):
            if mechanism in mechanisms and not has_tls:
                self._lifecycle.log.warning(
                    f"{secrets} of {mechanism} are readable on the way; use SASL_SSL",
                    **{CONSTANT: "secrets are readable on the way"},
                    listener=name,
                )

    async def _watch_news(self, news: OldNews, listeners: Sequence[KafkaListener]) -> None:
        """End what is served by rights that are too old; connections are kept out by the listeners."""
        told = ""
        while True:
            await asyncio.sleep(_NEWS_LOOK_S)
            # Before the first contact nobody has come in by anything.
            reason = news.ends() if self._has_heard() else ""
            if reason and not told:
                self._lifecycle.log.warning("clients are cut off", reason=reason)
                for listener in listeners:
                    for connection in list(listener.connections):
                        end_soon(connection, reason)
                for door in self._caller_doors:
                    door.present.end_all(f"{reason}; try another gateway")
            elif told and not reason:
                self._lifecycle.log.info("clients are served again: a controller was heard of")
            told = reason
            self._judge(news)

    def _has_heard(self) -> bool:
        return self._metadata.contact_age_ms() < NEVER_MS

    def _judge(self, news: OldNews) -> None:
        """Have the authorizer go by its rights, or not. One that has none yet denies nearly everything anyway."""
        if self._authorizer is None or not self._has_heard():
            return
        if news.ends(self._grace_ms):
            self._authorizer.distrust()
        else:
            self._authorizer.trust()

    async def _watch(self, name: str, files: ListenerTlsFiles) -> None:
        log = self._lifecycle.log
        await files.watch(
            lambda: say_renewed(self._lifecycle, str(files.cert), f"listener {name}"),
            lambda fault: log.warning("the certificate's files cannot be used", reason=fault),
        )

    async def _warn(self) -> None:
        """Once a day for each certificate that ends soon."""
        warned_s: dict[str, float] = {}
        while True:
            now_s = wall_ms() / 1000
            for name, files in self._files.items():
                left_s = files.current.not_after_s - now_s
                if left_s < WARN_BEFORE_S and now_s - warned_s.get(name, 0.0) >= _WARN_EVERY_S:
                    warned_s[name] = now_s
                    self._lifecycle.log.warning(
                        "the certificate of a listener ends soon; replace its files",
                        listener=name,
                        hours=round(left_s / 3600),
                        cert=str(files.cert),
                    )
            await asyncio.sleep(_LOOK_S)


def covers(name: str, host: str) -> bool:
    """Whether a name of a certificate, which may begin with `*.`, is that of the host."""
    name, host = name.lower(), host.lower()
    if name.startswith("*."):
        return host.partition(".")[2] == name[2:]
    return name == host
