"""`penstock user`, `acl` and `quota`: whole sessions of real processes, with a real listener at the other end.

The controller behind the listener decides by the rules of the real one; ACLs count.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import run as cli
from penstock_core.metadata.levels import METADATA_LEVEL
from penstock_core.metadata.security import CredentialKey
from penstock_core.security.bootstrap_users import from_text
from penstock_core.security.scram import ScramMechanism, credential
from penstock_frontend.authorizer import AllowAll
from penstock_proto.v1 import metadata_pb2
from unit.frontend.cluster.test_apis import serving
from unit.frontend.cluster.test_security_apis import deciding
from unit.runtime.fake_controllers import Cluster

pytestmark = pytest.mark.timeout(300)

SECRET = "wer-reitet-so-spaet"
PROCESS_TIMEOUT_S = 120.0


class Session:
    """A cluster, and what the command says of it."""

    def __init__(self, cluster: Cluster, bootstrap: str) -> None:
        self.cluster = cluster
        self.bootstrap = bootstrap

    async def run(self, *words: str, expect: int = 0) -> str:
        """What a command without a terminal prints, stdout first."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "penstock.cli.main", *words, "--bootstrap", self.bootstrap),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), PROCESS_TIMEOUT_S)
        assert process.returncode == expect, (words, process.returncode, out, err)
        return out.decode() + err.decode()

    async def typed(self, *words: str, lines: tuple[str, ...], expect: int = 0) -> str:
        """What a command prints at a terminal where a person types these lines, one at each question."""
        ours, theirs = os.openpty()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "penstock.cli.main", *words, "--bootstrap", self.bootstrap),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            # Without a terminal of its own, so that it asks at this one.
            start_new_session=True,
        )
        os.close(theirs)
        os.set_blocking(ours, False)
        loop, said, closed = asyncio.get_running_loop(), bytearray(), asyncio.Event()
        more = asyncio.Event()

        def read() -> None:
            try:
                said.extend(os.read(ours, 65536))
            except OSError:  # the other end is closed
                loop.remove_reader(ours)
                closed.set()
            more.set()

        loop.add_reader(ours, read)
        try:
            async with asyncio.timeout(PROCESS_TIMEOUT_S):
                for number, line in enumerate(lines, 1):
                    # The blank comes when typing is no longer shown, and what was typed before is gone.
                    while len(re.findall(rb"(?:New password of \w+|Once more): ", said)) < number:
                        assert not closed.is_set(), bytes(said)
                        more.clear()
                        await more.wait()
                    os.write(ours, line.encode() + b"\n")
                await closed.wait()
                code = await process.wait()
        except TimeoutError:
            process.kill()
            raise AssertionError(bytes(said)) from None
        finally:
            loop.remove_reader(ours)
            os.close(ours)
        assert code == expect, (words, code, bytes(said))
        return said.decode()

    async def json(self, *words: str) -> Any:
        return json.loads(await self.run(*words, "--json"))

    def signs_in(self, user: str, password: str, mechanism: ScramMechanism) -> bool:
        """Whether that password makes the stored keys."""
        stored = self.cluster.image.security.credentials.get(CredentialKey(user, mechanism))
        if stored is None:
            return False
        salted = mechanism.salted_password(password.encode(), stored.salt, stored.iterations)
        made = credential(mechanism, stored.salt, salted, stored.iterations)
        return (made.stored_key, made.server_key) == (stored.stored_key, stored.server_key)


def put(file: Path, content: bytes, mode: int = 0o600) -> None:
    """A file of that content and mode."""
    file.write_bytes(content)
    file.chmod(mode)


def remove(file: Path) -> None:
    file.unlink()


@asynccontextmanager
async def session(*, level: int = 2, acls_enabled: bool = True) -> AsyncIterator[Session]:
    authorizer = AllowAll()
    authorizer.is_enabled = acls_enabled
    async with serving(authorizer) as (client, cluster, _, _, endpoint):
        feature = metadata_pb2.FeatureRecord(name=METADATA_LEVEL, level=level)
        version = cluster.commit(metadata_pb2.MetadataRecord(feature=feature))
        assert await client.metadata.wait_for_version(version, 60_000)
        yield Session(cluster, endpoint.address)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    deciding(monkeypatch)
    return asyncio.run


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    put(file, SECRET.encode() + b"\n")
    return file


def test_a_user_from_its_first_password_to_its_end(run: Any, secret_file: Path) -> None:
    async def main() -> None:
        async with session() as s:
            assert "there are no users" in await s.run("user", "list")
            said = await s.run("user", "add", "alice", "--password-file", str(secret_file))
            assert said == "added user alice: SCRAM-SHA-256, SCRAM-SHA-512\n"
            assert all(s.signs_in("alice", SECRET, mechanism) for mechanism in ScramMechanism)
            salts = {stored.salt for stored in s.cluster.image.security.credentials.values()}
            assert len(salts) == 2
            await s.run(
                *("user", "add", "bob", "--password-file", str(secret_file)),
                *("--mechanism", "scram-sha-512", "--iterations", "5000"),
            )
            assert await s.run("user", "list") == (
                "USER   MECHANISM      ITERATIONS\n"
                "alice  SCRAM-SHA-256  4096\n"
                "alice  SCRAM-SHA-512  4096\n"
                "bob    SCRAM-SHA-512  5000\n"
            )
            assert (await s.json("user", "list"))[1] == {
                "user": "bob",
                "mechanisms": [{"mechanism": "SCRAM-SHA-512", "iterations": 5000}],
            }
            again = await s.run("user", "add", "bob", "--password-file", str(secret_file), expect=1)
            assert "penstock user password bob" in again
            put(secret_file, b"another")
            assert "has a new password" in await s.run(
                "user", "password", "bob", "--password-file", str(secret_file)
            )
            assert s.signs_in("bob", "another", ScramMechanism.SHA_512)
            assert not s.signs_in("bob", SECRET, ScramMechanism.SHA_512)
            assert CredentialKey("bob", 1) not in s.cluster.image.security.credentials
            await s.run("user", "delete", "alice", "--mechanism", "SCRAM-SHA-256")
            assert "no user 'carol'" in await s.run("user", "delete", "bob", "carol", expect=1)
            await s.run("user", "delete", "bob", "carol", "alice", "--if-exists")
            assert await s.json("user", "list") == []
            assert "no user 'bob'" in await s.run("user", "password", "bob", expect=1)

    run(main())


def test_a_password_is_asked_for_twice_and_never_shown(run: Any) -> None:
    async def main() -> None:
        async with session() as s:
            said = await s.typed("user", "add", "alice", lines=(SECRET, SECRET))
            assert "New password of alice: " in said
            assert "Once more: " in said
            assert SECRET not in said
            assert s.signs_in("alice", SECRET, ScramMechanism.SHA_256)
            said = await s.typed("user", "password", "alice", lines=("one", "two", "three", "three"))
            assert "do not match" in said
            assert s.signs_in("alice", "three", ScramMechanism.SHA_512)

    run(main())


def test_a_password_that_is_not_safe_to_take_is_refused_and_not_shown(run: Any, secret_file: Path) -> None:
    async def main() -> None:
        async with session() as s:
            add = ("user", "add", "alice", "--password-file", str(secret_file))
            put(secret_file, SECRET.encode(), 0o640)
            said = await s.run(*add, expect=2)
            assert f"chmod 600 {secret_file}" in said
            assert "mode 0640" in said
            assert SECRET not in said
            for text, words in (
                (b"", "empty"),
                (b"\n", "empty"),
                ("\u212bngstr\u00f6m".encode(), "normalize"),
                (b"\xff\xfe", "UTF-8"),
                (b"x" * 5000, "4096 bytes"),
            ):
                put(secret_file, text)
                assert words in await s.run(*add, expect=2), text
            remove(secret_file)
            assert "No such file" in await s.run(*add, expect=2)
            os.mkfifo(secret_file, 0o600)
            assert "is no file" in await s.run(*add, expect=2)
            assert "--password-file FILE (mode 0600)" in await s.run("user", "add", "alice", expect=2)
            assert "ASCII" in await s.run("user", "add", "\u00e1lice", expect=2)
            assert not s.cluster.image.security.credentials

    run(main())


def test_the_first_user_is_written_to_a_file(
    tmp_path: Path, secret_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "first-users.json"
    words = ["user", "bootstrap", "admin", "-o", str(output), "--password-file", str(secret_file)]
    assert cli([*words, "--iterations", "8192"]) == 0
    assert output.stat().st_mode & 0o777 == 0o600
    assert SECRET not in output.read_text()
    first, second = from_text(output.read_text())
    assert (first.user, second.user) == ("admin", "admin")
    for made in (first.credential, second.credential):
        salted = made.mechanism.salted_password(SECRET.encode(), made.salt, 8192)
        assert made == credential(made.mechanism, made.salt, salted, 8192)
    assert "wrote" in capsys.readouterr().err
    assert cli(words) == 1
    assert "is there already" in capsys.readouterr().err


def test_below_the_level_of_users_the_mend_is_named(run: Any, secret_file: Path) -> None:
    async def main() -> None:
        async with session(level=1) as s:
            said = await s.run("user", "add", "alice", "--password-file", str(secret_file), expect=1)
            assert "penstock cluster upgrade" in said
            assert said.count("\n") == 1

    run(main())


def test_rules_are_added_shown_tried_and_removed(run: Any) -> None:
    async def main() -> None:
        async with session() as s:
            assert await s.run("acl", "add", "User:alice", "read,write", "topic:flights") == (
                "added: allow User:alice from * read on topic:flights\n"
                "added: allow User:alice from * write on topic:flights\n"
            )
            await s.run("acl", "add", "User:alice", "read", "group:billing-", "--prefixed")
            await s.run("acl", "add", "User:*", "WRITE", "topic:fl", "--deny", "--prefixed", "--host", "::1")
            await s.run("acl", "add", "User:ops", "alter_configs", "cluster")
            assert await s.run("acl", "list", "--principal", "User:alice") == (
                "PERMISSION  PRINCIPAL   HOST  OPERATION  RESOURCE  PATTERN   NAME\n"
                "allow       User:alice  *     read       group     prefixed  billing-\n"
                "allow       User:alice  *     read       topic     literal   flights\n"
                "allow       User:alice  *     write      topic     literal   flights\n"
            )
            assert len(await s.json("acl", "list")) == 5
            assert len(await s.json("acl", "list", "--resource", "topic:flights")) == 2
            assert len(await s.json("acl", "list", "--resource", "topic:flights", "--applying")) == 3
            assert len(await s.json("acl", "list", "--resource", "topic")) == 3
            assert len(await s.json("acl", "list", "--permission", "deny", "--operation", "write")) == 1
            for words, allowed, rule in (
                (("User:alice", "write", "topic:flights"), "allowed", "allow User:alice from * write on"),
                (("User:alice", "describe", "topic:flights"), "allowed", "allow User:alice from *"),
                (
                    ("User:alice", "write", "topic:flights", "--host", "::1"),
                    "denied",
                    "deny User:* from ::1 write on prefixed topic:fl",
                ),
                (("User:bob", "read", "topic:flights"), "denied", "none applies"),
                (("User:alice", "read", "group:billing-7"), "allowed", "read on prefixed group:billing-"),
                (("User:ops", "describe-configs", "cluster"), "allowed", "cluster:kafka-cluster"),
            ):
                said = await s.run("acl", "test", *words)
                assert said.splitlines()[0].split() == ["answer", allowed], words
                assert rule in said.splitlines()[1], words
            asked = await s.json("acl", "test", "User:bob", "read", "topic:flights")
            assert asked == {"allowed": False, "rule": None}
            chosen = ("--principal", "User:alice", "--resource", "topic:flights")
            assert len(await s.json("acl", "remove", *chosen, "--dry-run")) == 2
            assert len(s.cluster.image.security.acls) == 5
            assert "removed 2 rules" in await s.run("acl", "remove", *chosen)
            assert "there are no such rules" in await s.run("acl", "list", *chosen)
            assert "removed 3 rules" in await s.run("acl", "remove", "--all")
            assert not s.cluster.image.security.acls

    run(main())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add", "alice", "read", "topic:t"), "write it as User:alice"),
        (("add", "User:alice", "reed", "topic:t"), "there are all, read, write"),
        (("add", "User:alice", "read", "t"), "topic:NAME"),
        (("add", "User:alice", "read", "topic:"), "topic:NAME"),
        (("add", "User:alice", "read", "cluster:mine"), "or cluster"),
        (("list", "--applying"), "--resource KIND:NAME"),
        (("remove",), "--all"),
        (("remove", "--all", "--principal", "User:a"), "--all takes no other"),
        (("test", "User:alice", "all", "topic:t"), "one operation"),
    ],
)
def test_rules_that_cannot_be_are_told_before_anybody_is_asked(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from penstock.cli.main import run as command

    # Nobody listens there: asking would be another exit code.
    assert command(["acl", *words, "--bootstrap", "127.0.0.1:1"]) == 2
    assert said in capsys.readouterr().err


def test_where_rules_do_not_count_none_is_taken(run: Any) -> None:
    async def main() -> None:
        async with session(acls_enabled=False) as s:
            for words in (
                ("acl", "add", "User:alice", "read", "topic:t"),
                ("acl", "list"),
                ("acl", "remove", "--all"),
                ("acl", "test", "User:alice", "read", "topic:t"),
            ):
                said = await s.run(*words, expect=1)
                assert "ACLs do not count in this cluster" in said
                assert said.count("\n") == 1

    run(main())


def test_quotas_are_set_shown_and_removed(run: Any) -> None:
    async def main() -> None:
        async with session() as s:
            rates = ("producer_byte_rate=1048576", "request_percentage=12.5")
            assert "would be taken" in await s.run("quota", "set", *rates, "--user", "alice", "--dry-run")
            assert await s.json("quota", "list") == []
            assert await s.run("quota", "set", *rates, "--user", "alice") == (
                "producer_byte_rate, request_percentage: set for user alice\n"
            )
            await s.run("quota", "set", "consumer_byte_rate=5", "--user", "alice", "--client-id", "c")
            await s.run("quota", "set", "consumer_byte_rate=6", "--default-user")
            await s.run("quota", "set", "connection_creation_rate=7", "--ip", "192.0.2.7")
            assert await s.run("quota", "list") == (
                "USER       CLIENT-ID  IP         QUOTA                     VALUE\n"
                "-          -          192.0.2.7  connection_creation_rate  7\n"
                "<default>  -          -          consumer_byte_rate        6\n"
                "alice      -          -          producer_byte_rate        1048576\n"
                "alice      -          -          request_percentage        12.5\n"
                "alice      c          -          consumer_byte_rate        5\n"
            )
            assert await s.json("quota", "list", "--default-user") == [
                {"entity": {"user": None}, "quotas": {"consumer_byte_rate": 6.0}}
            ]
            assert len(await s.json("quota", "list", "--user", "alice")) == 2
            await s.run("quota", "unset", "request_percentage", "--user", "alice")
            await s.run("quota", "unset", "consumer_byte_rate", "--default-user")
            left = await s.json("quota", "list", "--user", "alice", "--client-id", "c")
            assert left == [
                {"entity": {"user": "alice", "client-id": "c"}, "quotas": {"consumer_byte_rate": 5.0}}
            ]
            for words, code, mend in (
                (("set", "producer_byte_rate=1"), 2, "--default-user"),
                (("set", "producer_byte_rate=x", "--user", "a"), 2, "KEY=NUMBER"),
                (("set", "producer_byte_rate", "--user", "a"), 2, "KEY=NUMBER"),
                (("set", "no_such_rate=1", "--user", "a"), 1, "there are producer_byte_rate"),
                (("set", "producer_byte_rate=0", "--user", "a"), 1, "greater than 0"),
                (("set", "producer_byte_rate=1", "--user", "a", "--default-user"), 2, "one of them"),
                (("set", "producer_byte_rate=1", "--user", "a", "--ip", "::1"), 1, "IP entity"),
                (("unset", "producer_byte_rate"), 2, "--default-user"),
            ):
                said = await s.run("quota", *words, expect=code)
                assert mend in said, words
                assert said.count("\n") == 1

    run(main())
