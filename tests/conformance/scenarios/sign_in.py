"""Which request is let in when, and what whoever signs in wrongly is told: Kafka's SaslServerAuthenticator says so.

Every script is a connection of its own: a list of steps, and what came of each until the connection ended. Each
comes from an address of its own, so that the failures of one cost the others nothing.
"""

from __future__ import annotations

import itertools
import struct
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from conformance import build
from conformance.client import Client
from conformance.frame import Case, Outcome, scenario
from conformance.scenarios.raw import PLAIN_APIS, RAW
from conformance.secure_world import MAX_REAUTH_MS, PASSWORD, PLAIN_USERS, Doors
from conformance.sign_in import plain_token, set_acls, set_users, user_known
from conformance.targets import SECURE
from conformance.wire import Closed, Wire, decode_response, frame_of
from penstock_core.security.sasl import SaslFailure
from penstock_core.security.scram import ScramMechanism
from penstock_core.security.scram_client import ScramClient
from penstock_kafka.wire.apis import SPECS

SECTION: Final = "Signing in"
SILENT_S: Final = 6.0
OPEN_S: Final = 0.7
"""A connection that is not closed so long after its last answer stays open."""
SIDE_BY_SIDE: Final = 6
NONCE: Final = "rOprNGfwEbeRWgbNEkqO"
_SOURCES: Final = itertools.count(1)
_MAKING: Final = threading.Lock()

Step = Callable[["Script"], Any]


class Script:
    """One connection, and what came of each step."""

    def __init__(self, address: str) -> None:
        number = next(_SOURCES)
        source = f"127.{1 + number // 60_000 % 250}.{number // 250 % 240}.{1 + number % 250}"
        self.wire = Wire(address, SILENT_S, source)
        self.client: ScramClient | None = None
        self.challenge = b""
        self.lifetime_ms = 0

    def ask(self, api: str, version: int, values: dict[str, Any]) -> Any:
        """The answer's code and text."""
        request = build.request(api, version, values)
        self.wire.send_frame(frame_of(request, 7))
        frame = self.wire.receive_frame()
        if api == "api_versions":  # versions that are not there are answered in version 0
            return f"code {struct.unpack('>h', frame[4:6])[0]}"
        answer = decode_response(request, frame)
        told = [answer.error_code.name.upper()] if hasattr(answer, "error_code") else ["answered"]
        if text := getattr(answer, "error_message", None):
            told.append(text)
        if mechanisms := getattr(answer, "mechanisms", None):
            told.append(",".join(sorted(mechanisms)))
        self.challenge = bytes(getattr(answer, "auth_bytes", b""))
        if self.challenge:
            told.append("a challenge")
        if hasattr(answer, "session_lifetime"):
            self.lifetime_ms = round(answer.session_lifetime.total_seconds() * 1000)
            if self.lifetime_ms:
                told.append("for a while")
        return told


def versions(version: int = 3, name: str = "raw") -> Step:
    """ApiVersions."""
    words = {"client_software_name": name, "client_software_version": "1"}

    def step(script: Script) -> Any:
        if version > 4:
            script.wire.send_frame(struct.pack(">hhih", 18, version, 7, 3) + b"raw" + b"\0" * 9)
            return f"code {struct.unpack('>h', script.wire.receive_frame()[4:6])[0]}"
        return script.ask("api_versions", version, words)

    return step


def handshake(mechanism: str = "SCRAM-SHA-256", version: int = 1) -> Step:
    """SaslHandshake."""
    return lambda script: script.ask("sasl_handshake", version, {"mechanism": mechanism})


def token(data: bytes, version: int = 2) -> Step:
    """A token in SaslAuthenticate."""
    return lambda script: script.ask("sasl_authenticate", version, {"auth_bytes": data})


def raw(data: bytes) -> Step:
    """A frame with nothing but its length before it."""

    def step(script: Script) -> Any:
        script.wire.send_frame(data)
        script.challenge = script.wire.receive_frame()
        return "answered" + (", a challenge" if script.challenge else "")

    return step


def first(user: str, *, bare: bool = False, mechanism: ScramMechanism = ScramMechanism.SHA_256) -> Step:
    """SCRAM's first message."""

    def step(script: Script) -> Any:
        script.client = ScramClient(mechanism, user, PASSWORD, NONCE)
        return (raw if bare else token)(script.client.first())(script)

    return step


def final(
    change: Callable[[bytes], bytes] = lambda data: data, *, password: str = PASSWORD, bare: bool = False
) -> Step:
    """SCRAM's second message; and whether the server proved that it knows the credential."""

    def step(script: Script) -> Any:
        assert script.client is not None
        script.client._password = password.encode()
        answer = (raw if bare else token)(change(script.client.final(script.challenge)))(script)
        if script.challenge:
            try:
                script.client.finish(script.challenge)
            except SaslFailure as failure:
                return [answer, failure.reason]
        return answer

    return step


def request(api: str = "metadata", version: int = 4) -> Step:
    """Any other request."""
    return lambda script: script.ask(api, version, PLAIN_APIS.get(api, {}))


def data(frame: bytes) -> Step:
    """Bytes as they are; the length and the beginning of what comes back."""

    def step(script: Script) -> Any:
        script.wire.send(frame)
        return f"answered {script.wire.receive_frame()[4:6].hex()}"

    return step


def wait(seconds: float) -> Step:
    """Nothing is sent."""

    def step(_script: Script) -> Any:
        time.sleep(seconds)
        return "waited"

    return step


def played(address: str, steps: Sequence[Step]) -> list[Any]:
    """What came of each step, and at last whether the connection is still open."""
    script, found = Script(address), []
    with script.wire:
        for step in steps:
            try:
                found.append(step(script))
            except Closed:
                return [*found, "closed"]
            except TimeoutError:
                return [*found, "silent"]
            except SaslFailure as failure:
                return [*found, f"nothing to answer: {failure.reason}"]
        return [*found, _open(script.wire)]


def _open(wire: Wire) -> str:
    """Whether the other side has closed, when it said all it had to say."""
    try:
        wire.receive_frame(OPEN_S)
    except Closed:
        return "closed"
    except TimeoutError:
        return "open"
    return "talks on"


def users(t: Case, *names: str) -> list[str]:
    """Users with both credentials, by names of this run but those that Kafka has in its configuration."""
    made = [name if name in PLAIN_USERS else t.name(name) for name in names]
    with _MAKING:  # both listeners of ours have the same users: what is there stays as it is
        new = [name for name in made if name not in PLAIN_USERS or not user_known(t.doors.plain, name)]
        set_users(t.doors.plain, new, tuple(ScramMechanism))
        set_acls(t.doors, [], t.name("mark"))
    return made


def scripts(address: str, table: dict[str, Sequence[Step]]) -> dict[str, Any]:
    """What came of each; several at a time, for most of it is waiting."""
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        return dict(zip(table, pool.map(partial(played, address), table.values()), strict=True))


@scenario("sign-in-order", SECTION, clients=RAW, world=SECURE, fast=True, seconds=240)
def order(c: Client, t: Case) -> Outcome:
    """ApiVersions, handshake and tokens, in orders that are right and in others"""
    user, _ = users(t, "user", "plain-order")
    done = [handshake(), first(user), final()]
    return scripts(
        t.doors.sasl,
        {
            "as it should be": [versions(), *done, request()],
            "without ApiVersions": [*done, request()],
            **{f"ApiVersions {v}": [versions(v), handshake()] for v in range(5)},
            "ApiVersions twice": [versions(), versions(), handshake()],
            "ApiVersions that is not there, and again": [versions(99), versions(), *done],
            "ApiVersions with a bad name, and again": [versions(3, "-x-"), versions(), *done],
            "ApiVersions after the handshake": [handshake(), versions(), first(user)],
            "ApiVersions between the tokens": [handshake(), first(user), versions(), final()],
            "ApiVersions when signed in": [*done, versions(), versions()],
            "handshake twice": [handshake(), handshake("PLAIN"), token(plain_token("plain-order", PASSWORD))],
            "handshake of version 2": [data(struct.pack(">ihhih", 20, 17, 2, 7, 3) + b"raw\0\x05PLAIN\0")],
            "handshake when signed in": [*done, handshake(), request()],
            "a token before the handshake": [first(user)],
            "a token after ApiVersions": [versions(), first(user)],
            "a raw token first": [raw(plain_token("plain-order", PASSWORD))],
            "a token when signed in": [*done, token(b"x"), request()],
            "a request first": [request()],
            "a request after ApiVersions": [versions(), request()],
            "a request after the handshake": [handshake(), request()],
            "a request between the tokens": [handshake(), first(user), request(), final()],
            "no mechanism": [handshake("")],
            "an unknown mechanism": [handshake("GSSAPI"), handshake()],
            "an unknown mechanism, version 0": [handshake("GSSAPI", 0)],
            "a mechanism in small letters": [handshake("plain")],
            "version 0, SCRAM": [handshake(version=0), first(user, bare=True), final(bare=True), request()],
            "version 0, PLAIN": [
                handshake("PLAIN", 0),
                raw(plain_token("plain-order", PASSWORD)),
                request(),
            ],
            "version 0, a wrong password": [handshake("PLAIN", 0), raw(plain_token("plain-order", "x"))],
            "version 0, a token in a request": [handshake(version=0), first(user)],
            "version 1, a raw token": [handshake(version=1), first(user, bare=True)],
            **{
                f"SaslAuthenticate {v}": [
                    handshake("PLAIN"),
                    token(plain_token("plain-order", PASSWORD), v),
                    request(),
                ]
                for v in range(3)
            },
        },
    )


@scenario("sign-in-apis", SECTION, clients=RAW, world=SECURE, fast=True, seconds=240)
def apis(c: Client, t: Case) -> Outcome:
    """every API before signing in"""
    table: dict[str, Sequence[Step]] = {}
    for spec in SPECS.values():
        if spec.versions is None or spec.key in (17, 18, 36):
            continue
        for version in spec.versions:
            frame = struct.pack(">hhih", spec.key, version, 7, 3) + b"raw" + b"\0" * 12
            sized = struct.pack(">i", len(frame)) + frame
            table[f"{spec.name} {version} first"] = [data(sized)]
            table[f"{spec.name} {version} after ApiVersions"] = [versions(), data(sized)]
    return scripts(t.doors.sasl, table)


def _without(start: bytes) -> Callable[[bytes], bytes]:
    return lambda message: b",".join(part for part in message.split(b",") if not part.startswith(start))


def _instead(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda message: message.replace(old, new, 1)


@scenario("sign-in-scram", SECTION, clients=RAW, world=SECURE, fast=True, seconds=240)
def scram_messages(c: Client, t: Case) -> Outcome:
    """messages of SCRAM that are wrong, and some that only look so (RFC 5802)"""
    user, odd = users(t, "user", "a,b=c")
    name = user.encode()

    def begun(message: bytes) -> list[Step]:
        return [handshake(), token(message)]

    good = b"n,,n=" + name + b",r=" + NONCE.encode()
    beginnings = {
        "good": good,
        "empty": b"",
        "zeros": b"\0" * 20,
        "not UTF-8": b"n,,n=\xff\xfe,r=abc",
        "no GS2 header": good[3:],
        "channel binding is possible": b"y" + good[1:],
        "channel binding is wanted": b"p=tls-unique" + good[1:],
        "acts for itself": b"n,a=" + name + good[2:],
        "acts for another": b"n,a=nobody" + good[2:],
        "a mandatory extension": b"n,,m=x," + good[3:],
        "no nonce": b"n,,n=" + name,
        "an empty nonce": b"n,,n=" + name + b",r=",
        "no user": b"n,,n=,r=abc",
        "a = that stands for nothing": b"n,,n=a=b,r=abc",
        "an extension": good + b",x=1",
        "an extension that is none": good + b",x",
        "tokens are asked for": good + b",tokenauth=true",
        "a space behind": good + b" ",
        "a comma behind": good + b",",
        "unknown user": b"n,,n=nobody-at-all,r=" + NONCE.encode(),
    }
    found = scripts(t.doors.sasl, {f"begins: {k}": begun(v) for k, v in beginnings.items()})
    ends: dict[str, Step] = {
        "good": final(),
        "a wrong password": final(password="other"),
        "a wrong password of capitals": final(password=PASSWORD.upper()),
        "empty": final(lambda _: b""),
        "no proof": final(_without(b"p=")),
        "no nonce": final(_without(b"r=")),
        "no channel": final(_without(b"c=")),
        "another nonce": final(_instead(b"r=" + NONCE.encode(), b"r=" + NONCE[::-1].encode())),
        "the client's nonce alone": final(
            lambda m: b",".join(
                b"r=" + NONCE.encode() if part.startswith(b"r=") else part for part in m.split(b",")
            )
        ),
        "another channel": final(_instead(b"c=biws", b"c=eSws")),
        "no Base64": final(lambda m: m[: m.index(b"p=")] + b"p=***"),
        "a short proof": final(lambda m: m[: m.index(b"p=")] + b"p=AAAA"),
        "a long proof": final(lambda m: m[: m.index(b"p=")] + b"p=" + b"AAAA" * 40),
        "an extension": final(lambda m: m.replace(b",p=", b",x=1,p=")),
        "something behind": final(lambda m: m + b",x=1"),
    }
    found |= scripts(
        t.doors.sasl, {f"ends: {k}": [handshake(), first(user), step] for k, step in ends.items()}
    )
    wide = ScramMechanism.SHA_512
    return found | scripts(
        t.doors.sasl,
        {
            "unknown user": [handshake(), first(f"{user}-not"), final()],
            "name with comma and equals sign": [handshake(), first(odd), final()],
            "SCRAM-SHA-512": [handshake("SCRAM-SHA-512"), first(user, mechanism=wide), final(), request()],
            "the proof of the other mechanism": [handshake("SCRAM-SHA-512"), first(user), final()],
            "a third message": [handshake(), first(user), final(), token(b"x")],
        },
    )


@scenario("sign-in-plain", SECTION, clients=RAW, world=SECURE, fast=True, seconds=240)
def plain_messages(c: Client, t: Case) -> Outcome:
    """messages of PLAIN that are wrong, and some that only look so (RFC 4616)"""
    users(t, "plain-words")
    user, word = b"plain-words", PASSWORD.encode()
    messages = {
        "good": b"\0" + user + b"\0" + word,
        "a wrong password": b"\0" + user + b"\0x",
        "an unknown user": b"\0nobody-at-all\0" + word,
        "acts for itself": user + b"\0" + user + b"\0" + word,
        "acts for another": b"nobody\0" + user + b"\0" + word,
        "acts for another, with a wrong password": b"nobody\0" + user + b"\0x",
        "empty": b"",
        "no password": b"\0" + user + b"\0",
        "no user": b"\0\0" + word,
        "one part": user,
        "two parts": user + b"\0" + word,
        "four parts": b"\0" + user + b"\0" + word + b"\0",
        "not UTF-8": b"\0\xff\xfe\0" + word,
        "zeros": b"\0\0\0",
        "a user in capitals": b"\0" + user.upper() + b"\0" + word,
        "a password longer than the right one": b"\0" + user + b"\0" + word + b"x",
    }
    return scripts(
        t.doors.sasl, {name: [handshake("PLAIN"), token(message)] for name, message in messages.items()}
    )


@scenario("sign-in-sizes", SECTION, clients=RAW, world=SECURE, fast=True, seconds=240)
def sizes(c: Client, t: Case) -> Outcome:
    """frames before signing in that are too large, empty or never end"""
    sized = struct.Struct(">i").pack
    users(t, "plain-sizes")
    huge = b"\0" + b"x" * 30_000 + b"\0" + b"y" * 30_000
    table: dict[str, Sequence[Step]] = {
        "negative": [data(sized(-1))],
        "nothing": [data(sized(0))],
        "2 bytes": [data(sized(2) + b"\0\x12")],
        "more than 512 KiB are announced": [data(sized(524_289) + b"\0\x12\0\0")],
        "2 GB are announced": [data(sized(2_000_000_000))],
        "HTTP": [data(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")],
        "TLS": [data(bytes.fromhex("1603010200010001fc0303") + b"\0" * 600)],
        "a token of 60,000": [handshake("PLAIN"), token(huge)],
        "a token above 512 KiB": [handshake("PLAIN"), token(b"\0" + b"x" * 524_288)],
        "a token of 100,000": [handshake("PLAIN"), token(b"\0" + b"x" * 50_000 + b"\0" + b"y" * 50_000)],
    }
    return scripts(t.doors.sasl, table)


@scenario("sign-in-again", SECTION, clients=RAW, world=SECURE, fast=True, seconds=240)
def again(c: Client, t: Case) -> Outcome:
    """sessions that end: renewed in time, late, by another user or another mechanism (KIP-368)"""
    user, other, *_ = users(t, "user", "other", "plain-again", "plain-again-2")
    doors: Doors = t.doors
    done: list[Step] = [handshake(), first(user), final()]
    plain: list[Step] = [handshake("PLAIN"), token(plain_token("plain-again", PASSWORD))]
    late = wait(MAX_REAUTH_MS / 1000 + 0.5)
    return scripts(
        doors.reauth,
        {
            "renewed": [*done, request(), *done, request()],
            "renewed twice at once": [*done, *done, handshake(), request()],
            "renewed twice": [*done, *done, wait(1.2), *done, request()],
            "renewed late": [*done, late, *done, request()],
            "not renewed": [*done, late, request()],
            "not renewed, ApiVersions": [*done, late, versions()],
            "a token without a handshake": [*done, token(b"x"), request()],
            "a token without a handshake, late": [*done, late, token(b"x")],
            "another user": [*done, handshake(), first(other), final()],
            "a wrong password": [*done, handshake(), first(user), final(password="x")],
            "another mechanism": [*done, handshake("PLAIN"), token(plain_token(user, PASSWORD))],
            "the other SCRAM": [
                *done,
                handshake("SCRAM-SHA-512"),
                first(user, mechanism=ScramMechanism.SHA_512),
            ],
            "an unknown mechanism": [*done, handshake("GSSAPI")],
            "handshake of version 0": [*done, handshake(version=0), first(user, bare=True), final(bare=True)],
            "a request after the handshake": [*done, handshake(), request()],
            "a request between the tokens": [*done, handshake(), first(user), request()],
            "ApiVersions, then renewed": [*done, versions(), *done],
            "ApiVersions after the handshake": [*done, handshake(), versions()],
            "PLAIN": [*plain, request(), *plain, request()],
            "PLAIN, another user": [
                *plain, handshake("PLAIN"), token(plain_token("plain-again-2", PASSWORD)),
            ],
            "begun with version 0": [
                handshake(version=0), first(user, bare=True), final(bare=True), request(), late, request(),
            ],
        },
    )  # fmt: skip
