"""DescribeUserScramCredentials and AlterUserScramCredentials: who may sign in, and by what.

A client sends a salted password, which is as good as the password; the two keys that a server needs are made of it
here, and nothing else goes on to the controllers. Nobody is ever told a salt or a key.

Sources: KIP-554; ScramImage and ScramControlManager of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.security.scram import ScramMechanism, credential
from penstock_frontend.authorizer import Authorizer, Operation, require_cluster
from penstock_frontend.cluster.controller_calls import ControllerCalls
from penstock_frontend.cluster.describe import items
from penstock_frontend.listener.connection import Connection
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_kafka.wire import codec
from penstock_kafka.wire.frames import RequestHeader
from penstock_proto.v1 import controller_pb2 as pb
from penstock_runtime.turns import LoopTurns

CHANGES_MAX: Final = 10_000
"""Of one request (Kafka: as many records as one operation of a user may write)."""


class Users:
    """Answers about users."""

    def __init__(
        self, calls: ControllerCalls, authorizer: Authorizer, metrics: KafkaMetrics, turns: LoopTurns
    ) -> None:
        self._calls = calls
        self._authorizer = authorizer
        self._metrics = metrics
        self._turns = turns

    async def describe(self, connection: Connection, header: RequestHeader, frame: bytearray) -> bytes:
        """The response to DescribeUserScramCredentials."""
        request = codec.decode_request(header, frame)
        require_cluster(self._authorizer, connection.identity, Operation.DESCRIBE)
        return await self._turns.run(self._described(header, [user.name for user in request.users or ()]))

    def _described(self, header: RequestHeader, names: list[str]) -> Generator[None, None, bytes]:
        known: dict[str, list[tuple[int, int]]] = {}
        for key, stored in self._calls.metadata.image.security.credentials.items():
            known.setdefault(key.user, []).append((key.mechanism, stored.iterations))
            yield
        asked = Counter(names) or Counter(sorted(known))
        shell = codec.build(
            codec.response_type(header.api_key, header.api_version),
            error_code=0,
            error_message=None,
            results=(),
        )
        results = (self._describe_one(header, user, times, known) for user, times in asked.items())
        return (yield from codec.encode_response_steps(header, shell, "results", results))

    def _describe_one(
        self, header: RequestHeader, user: str, times: int, known: Mapping[str, Sequence[tuple[int, int]]]
    ) -> Any:
        code, message = ErrorCode.NONE, None
        if times > 1:
            code = ErrorCode.DUPLICATE_RESOURCE
            message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
        elif user not in known:
            code = ErrorCode.RESOURCE_NOT_FOUND
            message = f"Attempt to describe a user credential that does not exist: {user}"
        self._metrics.count_error(header.api_key, code)
        return codec.item(
            header,
            "DescribeUserScramCredentialsResult",
            user=user,
            error_code=code,
            error_message=message,
            credential_infos=tuple(
                codec.item(header, "CredentialInfo", mechanism=mechanism, iterations=iterations)
                for mechanism, iterations in (() if code else sorted(known[user]))
            ),
        )

    async def alter(self, connection: Connection, header: RequestHeader, frame: bytearray) -> bytes:
        """The response to AlterUserScramCredentials: a result for each user, whose changes count all or none."""
        request = codec.decode_request(header, frame)
        require_cluster(self._authorizer, connection.identity, Operation.ALTER)
        deletions, upsertions = items(request.deletions), items(request.upsertions)
        if len(deletions) + len(upsertions) > CHANGES_MAX:
            raise PenstockError(
                ErrorCode.INVALID_REQUEST,
                f"{len(deletions) + len(upsertions)} changes in one request; {CHANGES_MAX} are allowed, "
                "send them in parts",
            )
        found: dict[str, tuple[int, str | None]] = {
            change.name: (ErrorCode.NONE, None) for change in (*deletions, *upsertions)
        }
        for upsertion in upsertions:
            if (refusal := _salted_wrongly(upsertion)) is not None:
                found[upsertion.name] = (refusal.code, refusal.message)
        changes = [
            pb.UserCredentialChange(user=one.name, mechanism=one.mechanism, remove=True)
            for one in deletions
            if not found[one.name][0]
        ]
        # 25 us each.
        changes += await self._turns.run(_changes([one for one in upsertions if not found[one.name][0]]))
        if changes:
            response = await self._calls.call(
                "AlterUserCredentials",
                pb.AlterUserCredentialsRequest(changes=changes, principal=str(connection.principal)),
            )
            for change, error in zip(changes, response.results, strict=True):
                if error.code:
                    found[change.user] = (error.code, error.message or None)
        results = []
        for user, (code, message) in found.items():
            self._metrics.count_error(header.api_key, code)
            results.append(
                codec.item(
                    header,
                    "AlterUserScramCredentialsResult",
                    user=user,
                    error_code=code,
                    error_message=message,
                )
            )
        return codec.respond(header, results=tuple(results))


def _mechanism(code: int) -> ScramMechanism | None:
    return ScramMechanism(code) if code in ScramMechanism.__members__.values() else None


def _salted_wrongly(upsertion: Any) -> PenstockError | None:
    """What is wrong with a salted password, which nobody but this process sees.

    Kafka takes any: one that is not what the mechanism's hash gives fits no password, and an empty one everybody
    knows.
    """
    mechanism = _mechanism(upsertion.mechanism)
    if mechanism is None or len(upsertion.salted_password) == mechanism.key_bytes:
        return None
    return PenstockError(
        ErrorCode.UNACCEPTABLE_CREDENTIAL,
        f"the salted password of {upsertion.name!r} has {len(upsertion.salted_password)} bytes; "
        f"{mechanism.mechanism_name} gives {mechanism.key_bytes}",
    )


def _changes(upsertions: Sequence[Any]) -> Generator[None, None, list[pb.UserCredentialChange]]:
    made = []
    for one in upsertions:
        made.append(_change(one))
        yield
    return made


def _change(upsertion: Any) -> pb.UserCredentialChange:
    """What the controllers are told. An unknown mechanism goes without keys: they refuse it before they look."""
    change = pb.UserCredentialChange(
        user=upsertion.name, mechanism=upsertion.mechanism, iterations=upsertion.iterations
    )
    mechanism = _mechanism(upsertion.mechanism)
    if mechanism is not None:
        made = credential(
            mechanism, bytes(upsertion.salt), bytes(upsertion.salted_password), upsertion.iterations
        )
        change.salt, change.stored_key, change.server_key = made.salt, made.stored_key, made.server_key
    return change
