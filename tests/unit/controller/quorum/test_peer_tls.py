"""TLS between two controllers, without sockets."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from penstock_controller.quorum.peer_tls import TlsEnd, TlsFault, TlsStream
from penstock_core.security.identity import PeerIdentity
from penstock_runtime.security.role_tls import RoleContexts, RoleTls, load_contexts
from support.certificates import DOMAIN, ClusterCa


@pytest.fixture(scope="module")
def ca() -> ClusterCa:
    return ClusterCa()


def contexts(ca: ClusterCa, directory: Path, name: str, role: str = "controller") -> RoleContexts:
    return load_contexts(RoleTls.model_validate(ca.issue(directory / f"{role}-{name}", role, name)), role)


def pair(near: RoleContexts, far: RoleContexts) -> tuple[TlsStream, TlsStream]:
    return TlsStream(near.client, is_server=False), TlsStream(far.server, is_server=True)


def pump(dialler: TlsStream, listener: TlsStream) -> tuple[bytes, bytes]:
    """Carry everything both ways; what each side said in plain. Raises what either raises."""
    heard_there, heard_here = b"", b""
    while True:
        up, down = dialler.take(), listener.take()
        if not up and not down:
            return heard_there, heard_here
        if up:
            heard_there += listener.receive(up)
        if down:
            heard_here += dialler.receive(down)


def test_a_hello_that_waits_is_said_after_the_handshake(tmp_path: Path, ca: ClusterCa) -> None:
    one, two = contexts(ca, tmp_path, "1"), contexts(ca, tmp_path, "2")
    dialler, listener = pair(two, one)
    dialler.send(b"hello")
    dialler.start()
    assert pump(dialler, listener) == (b"hello", b"")
    assert dialler.is_established
    assert listener.is_established
    assert listener.peer_fault(one.identity, 2) == ""
    assert dialler.peer_fault(two.identity, 1) == ""
    assert "controller/2, not of controller 3" in listener.peer_fault(one.identity, 3)
    elsewhere = PeerIdentity("elsewhere", "controller", "1")
    assert DOMAIN in listener.peer_fault(elsewhere, 2)


def test_megabytes_come_whole_in_pieces_of_any_size(tmp_path: Path, ca: ClusterCa) -> None:
    own = contexts(ca, tmp_path, "1")
    dialler, listener = pair(own, own)
    dialler.start()
    pump(dialler, listener)
    data = os.urandom(5_000_000)
    dialler.send(data)
    ciphertext = dialler.take()
    heard = b"".join(
        listener.receive(ciphertext[at : at + 70_001]) for at in range(0, len(ciphertext), 70_001)
    )
    assert heard == data


def test_who_is_refused_hears_it_and_the_other_says_why(tmp_path: Path, ca: ClusterCa) -> None:
    own, other = contexts(ca, tmp_path, "1"), contexts(ClusterCa(), tmp_path / "other", "2")
    dialler, listener = pair(other, own)
    dialler.start()
    listener.receive(dialler.take())
    with pytest.raises(
        TlsFault, match=r"its certificate is refused .*look at its tls\.cert and at tls\.ca here"
    ):
        dialler.receive(listener.take())
    with pytest.raises(TlsFault, match="it refuses this controller's certificate"):
        listener.receive(dialler.take())


def test_garbage_is_a_fault_and_a_closed_session_an_end(tmp_path: Path, ca: ClusterCa) -> None:
    own = contexts(ca, tmp_path, "1")
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100, b"\x16\x03\x01\x00\x05abcde", b"\xff" * 5):
        _, listener = pair(own, own)
        with pytest.raises(TlsFault, match="TLS"):
            listener.receive(garbage)
    dialler, listener = pair(own, own)
    dialler.start()
    pump(dialler, listener)
    with pytest.raises(TlsFault):
        listener.receive(b"\x17\x03\x03\x00\x20" + b"x" * 32)
    dialler, listener = pair(own, own)
    dialler.start()
    pump(dialler, listener)
    with pytest.raises(ssl.SSLWantReadError):
        dialler._object.unwrap()
    with pytest.raises(TlsEnd):
        listener.receive(dialler.take())


def test_little_waits_for_a_handshake(tmp_path: Path, ca: ClusterCa) -> None:
    own = contexts(ca, tmp_path, "1")
    dialler, _ = pair(own, own)
    with pytest.raises(TlsFault, match="before the handshake"):
        dialler.send(bytes(5000))
