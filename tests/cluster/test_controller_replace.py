"""`penstock controller` with real processes: a controller that lost its disk, and wrong uses."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from penstock_core.errors import PenstockError
from penstock_proto.v1 import controller_pb2 as api
from penstock_runtime.grpc_tools import ChannelPool
from support.controllers import Controllers

PATIENCE_S = 120

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def controllers(tmp_path: Path) -> Iterator[Controllers]:
    # Silence enough that a loaded machine and its disk make no election: who leads is who is asked and killed.
    quorum = Controllers(
        tmp_path,
        3,
        raft_snapshot_every=20,
        raft_silence_ms=3_000,
        http_bind="127.0.0.1:0",
        log_format="json",
    )
    quorum.start_all()
    yield quorum
    quorum.kill_all()


@pytest_asyncio.fixture
async def channels() -> AsyncIterator[ChannelPool]:
    pool = ChannelPool()
    yield pool
    await pool.close()


async def command(controllers: Controllers, *words: str) -> subprocess.CompletedProcess[str]:
    """`penstock controller WORDS`."""
    return await asyncio.to_thread(
        subprocess.run,
        [
            *(sys.executable, "-m", "penstock.cli.main", "controller", *words),
            *("--controllers", ",".join(controllers.addresses)),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S * 2,
        check=False,
    )


async def until_told(controllers: Controllers, what: Callable[[dict[int, str]], bool]) -> None:
    """Wait until `penstock controller list` says so of the states; it asks each controller for 2 s only."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            done = await command(controllers, "list", "--json")
            if done.returncode == 0 and what({row["id"]: row["state"] for row in json.loads(done.stdout)}):
                return


async def settled(controllers: Controllers, *words: str) -> subprocess.CompletedProcess[str]:
    """`penstock controller WORDS`, again while no majority answers."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            done = await command(controllers, *words)
            if done.returncode != 3:
                return done


async def commit(
    controllers: Controllers, channels: ChannelPool, timeout_ms: int = PATIENCE_S * 1000
) -> None:
    """A change of the metadata that a majority has to take."""
    request = api.AllocateProducerIdsRequest(owner="test")
    await controllers.client(channels).call("AllocateProducerIds", request, timeout_ms)


async def until_recorded(controllers: Controllers, channels: ChannelPool) -> int:
    """Wait until the metadata know every controller's directory; the active one's id."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            active = await controllers.active_id(channels)
            if active > 0:
                members = (await controllers.describe(channels, active)).members
                if all(m.directory_id and m.directory_id == m.connected_directory_id for m in members):
                    return active
            await asyncio.sleep(0.05)


async def until_connected(controllers: Controllers, channels: ChannelPool, at: int, who: int) -> None:
    """Wait until controller `at` sees controller `who`, whose directory is new."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            members = (await controllers.describe(channels, at)).members
            member = next(m for m in members if m.controller_id == who)
            if member.connected_directory_id and member.connected_directory_id != member.directory_id:
                return
            await asyncio.sleep(0.05)


async def until(condition: Callable[[], bool]) -> None:
    """Other processes know nothing of our events."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def ready(controllers: Controllers, controller_id: int) -> tuple[int, str]:
    """Status and text of /readyz."""
    found = re.findall(r'"http": ?"([^"]+)"', controllers.log(controller_id))
    try:
        with urllib.request.urlopen(f"http://{found[-1]}/readyz", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except (IndexError, OSError):
        return 0, ""  # it is only starting: there is no address in its log, or that of the process before it


def wipe(controllers: Controllers, controller_id: int) -> Path:
    """Take the data directory away; where it went."""
    controllers.kill(controller_id)
    directory = controllers.directory / f"controller-{controller_id}"
    kept = controllers.directory / f"kept-{controller_id}"
    shutil.move(directory, kept)
    return kept


async def test_a_lost_disk_is_replaced(controllers: Controllers, channels: ChannelPool) -> None:
    active = await until_recorded(controllers, channels)
    lost, other = active % 3 + 1, (active + 1) % 3 + 1
    for _ in range(50):
        await commit(controllers, channels)
    old_directory = wipe(controllers, lost)
    controllers.start(lost)
    await until_connected(controllers, channels, active, lost)
    # It follows, says so, names the command, and does not vote.
    await until(lambda: f"penstock controller replace {lost}" in ready(controllers, lost)[1])
    assert ready(controllers, lost)[0] == 503
    await until_told(controllers, lambda states: states[lost] == "not admitted")
    async with asyncio.timeout(PATIENCE_S):
        while f"penstock controller replace {lost}" not in (await command(controllers, "list")).stderr:
            pass

    done = await settled(controllers, "replace", str(lost), "--json", "--timeout", str(PATIENCE_S))
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["voter"]
    assert facts["old_directory_id"] != facts["new_directory_id"]
    again = await settled(controllers, "replace", str(lost))
    assert again.returncode == 1
    assert "nothing is to be replaced" in again.stderr
    await until(lambda: ready(controllers, lost)[0] == 200)

    # It counts: the two that are left elect and commit.
    controllers.kill(active)
    await commit(controllers, channels)
    await until_told(controllers, lambda states: set(states.values()) == {"active", "voter", "absent"})
    controllers.start(active)
    await until_recorded(controllers, channels)

    # Its old directory, found again, is let in no more.
    controllers.kill(lost)
    shutil.rmtree(controllers.directory / f"controller-{lost}")
    shutil.move(old_directory, controllers.directory / f"controller-{lost}")
    controllers.start(lost)
    await until(lambda: "that was replaced" in controllers.log(other) + controllers.log(active))
    await commit(controllers, channels)
    members = (await controllers.describe(channels, other)).members
    assert [m.reachable for m in members if m.controller_id == lost] == [False]


async def test_one_that_is_not_admitted_helps_nobody_to_lead(
    controllers: Controllers, channels: ChannelPool
) -> None:
    active = await until_recorded(controllers, channels)
    lost, other = active % 3 + 1, (active + 1) % 3 + 1
    wipe(controllers, lost)
    controllers.start(lost)
    await until_connected(controllers, channels, active, lost)
    term = (await controllers.describe(channels, other)).term
    controllers.kill(active)
    with pytest.raises(PenstockError):
        await commit(controllers, channels, 4_000)
    assert (await controllers.describe(channels, other)).active_controller_id not in (other, lost)
    assert (await controllers.describe(channels, lost)).term <= term
    # Without a majority of voters nobody is admitted either.
    refused = await command(controllers, "replace", str(lost))
    assert refused.returncode == 3
    assert "a majority of the controllers must run" in refused.stderr
    controllers.start(active)
    await commit(controllers, channels)


async def test_one_that_is_alone_is_not_ready(controllers: Controllers) -> None:
    """It keeps the leader that it knew, since it asks before it stands; whoever routes by /readyz must not."""
    await until(lambda: all(ready(controllers, n)[0] == 200 for n in (1, 2, 3)))
    for number in (1, 2):
        controllers.kill(number)
    alone = 503, "no active controller is known; a majority of raft_peers must run"
    await until(lambda: (ready(controllers, 3)[0], ready(controllers, 3)[1].strip()) == alone)
    controllers.start(1)
    await until(lambda: all(ready(controllers, n)[0] == 200 for n in (1, 3)))


async def test_wrong_uses_are_refused(controllers: Controllers, channels: ChannelPool) -> None:
    active = await until_recorded(controllers, channels)
    lost, other = active % 3 + 1, (active + 1) % 3 + 1
    for words, code, said in [
        (("replace", "9"), 1, "is not in raft_peers (1, 2, 3)"),
        (("replace", str(active)), 1, "nothing is to be replaced"),
        (("replace", str(lost)), 1, "is alive with the data directory that it votes with"),
        (("replace", "x"), 2, "is not a valid integer"),
    ]:
        refused = await settled(controllers, *words)
        assert (refused.returncode, said in refused.stderr) == (code, True), refused.stderr
        assert refused.stderr.count("\n") == 1
    wipe(controllers, lost)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            refused = await command(controllers, "replace", str(lost))
            if "start it with an empty data_dir" in refused.stderr and "is not there" in refused.stderr:
                break
    # With the other one stopped, only the one to replace would make the majority.
    controllers.start(lost)
    await until_connected(controllers, channels, active, lost)
    controllers.processes[other].send_signal(signal.SIGKILL)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            refused = await command(controllers, "replace", str(lost), "--timeout", "0")
            assert refused.returncode != 0
            if f"(not controller {other})" in refused.stderr:
                break
    assert "start them first" in refused.stderr


def test_no_controllers_are_named(tmp_path: Path) -> None:
    for words, code, said in [
        (["list", "--dir", str(tmp_path)], 2, "give --controllers HOST:PORT"),
        (["list", "--controllers", "nowhere"], 2, "--controllers 'nowhere': write it as HOST:PORT"),
        (
            ["list", "--controllers", "127.0.0.1:1"],
            3,
            "no controller answers (127.0.0.1:1: connection refused)",
        ),
    ]:
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli.main", "controller", *words],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr
