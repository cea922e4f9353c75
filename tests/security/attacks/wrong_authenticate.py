"""Passwords that are guessed at the native gRPC port."""

from __future__ import annotations

import struct
from typing import Final

from penstock_proto.v1 import gateway_pb2 as pb
from security.floods import flood
from security.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    OPENING,
    RST_STREAM,
    call_headers,
    frames_in,
    http2_frame,
)
from security.target import TLS, Entry, Outcome, Target

TEXT = (
    "wrong passwords by Authenticate at the gateway's gRPC port, on 8 connections at a time, again and again"
)
NEEDS = TLS
PATIENCE_S: Final = 40.0
_GUESS = pb.AuthenticateRequest(mechanism="PLAIN", message=b"\0admin\0not the password").SerializeToString()
_CALL = b"".join(
    (
        OPENING,
        http2_frame(HEADERS, END_HEADERS, 1, call_headers("/penstock.v1.Gateway/Authenticate", tls=True)),
        http2_frame(DATA, END_STREAM, 1, b"\0" + struct.pack(">I", len(_GUESS)) + _GUESS),
    )
)


def run(target: Target) -> Outcome:
    """For some seconds. By hand, since gRPC's own client cannot come from an address of one's own."""
    entry = Entry(target.entry.ca, alpn=("h2",))

    def guess(source: str) -> None:
        with entry.connect(target.doors["gateway grpc"], source, PATIENCE_S) as connection:
            connection.sendall(_CALL)
            data = b""
            while part := connection.recv(65_536):
                frames, data = frames_in(data + part)
                for kind, flags, _, payload in frames:
                    if kind == DATA and payload:
                        return
                    if kind == RST_STREAM or (kind == HEADERS and flags & END_STREAM):
                        raise ConnectionError("not let in")
        raise ConnectionError("closed")

    done, refused = flood(guess, target.small)
    return Outcome(done == 0, f"{done} let in, {refused} refused")
