"""Settings, data directory, and one whole controller in this process."""

from __future__ import annotations

import asyncio
import socket
import threading
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock_controller.directory import META_FILE, DataDirectory
from penstock_controller.quorum.snapshot import SNAPSHOT_FILE
from penstock_controller.role import run
from penstock_controller.settings import ControllerSettings
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NodeId
from penstock_core.limits import FEATURE_LEVEL
from penstock_core.metadata.levels import level_of
from penstock_core.metadata.security import SIGN_IN_KEY
from penstock_core.security.bootstrap_users import BootstrapUser, to_text
from penstock_core.security.scram import ScramMechanism, credential
from penstock_proto.v1 import common_pb2 as common
from penstock_proto.v1 import controller_pb2 as api
from penstock_runtime.addresses import StartupError
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.grpc_tools import ChannelPool
from penstock_runtime.lifecycle import Lifecycle, monotonic_ms
from penstock_runtime.metadata_client import MetadataClient
from penstock_runtime.settings import load_settings
from support.controllers import free_ports
from support.waiting import eventually

# --- settings ---------------------------------------------------------------------


def flags(**changes: str) -> list[str]:
    values = {
        "controller_id": "1",
        "raft_peers": "1@127.0.0.1:4001",
        "controllers": "127.0.0.1:5001",
    } | changes
    return [part for key, value in values.items() for part in ("--" + key.replace("_", "-"), value)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"controller_id": "2"}, "controller_id 2 is not in raft_peers"),
        ({"controller_id": "0"}, "controller-id"),
        ({"raft_peers": "127.0.0.1:4001"}, "ID@host:port"),
        ({"raft_peers": "1@127.0.0.1:0"}, "ID@host:port"),
        ({"raft_peers": "1@h:1,2@h:2"}, "1, 3 or 5"),
        ({"raft_peers": "1@h:1,1@h:2,3@h:3"}, "unique"),
        ({"controllers": "a:1,b:2"}, "name each controller once"),
        ({"raft_bind": "nowhere"}, "raft-bind"),
        ({"node_heartbeat_interval_ms": "1500"}, "at most half"),
        ({"tls": "cert.pem"}, "--tls: give it as JSON"),
        ({"tls": '{"cert": "a", "key": "b"}'}, "--tls.ca: field required"),
        (
            {"tls": '{"cert": "a", "key": "b", "ca": "c", "kye": "d"}'},
            "unknown tls.kye; did you mean key?",
        ),
    ],
)
def test_bad_settings_name_the_thing(changes: dict[str, str], words: str) -> None:
    with pytest.raises(StartupError, match=words):
        load_settings(ControllerSettings, flags(**changes), "controller")


def test_a_certificate_is_a_table_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "controller.toml"
    path.write_text('[tls]\ncert = "c.pem"\nkey = "k.pem"\nca = "ca.pem"\n')
    settings = load_settings(ControllerSettings, flags(config=str(path)), "controller")
    assert settings.tls is not None
    assert settings.tls.paths() == (Path("c.pem"), Path("k.pem"), Path("ca.pem"))


def test_addresses_follow_ids_or_order() -> None:
    peers = {"raft_peers": "3@h:1,1@h:2,2@h:3"}
    ordered = load_settings(ControllerSettings, flags(controllers="a:1,b:2,c:3", **peers), "controller")
    assert ordered.grpc_addresses() == {3: "a:1", 1: "b:2", 2: "c:3"}
    named = load_settings(ControllerSettings, flags(controllers="1@a:1,2@b:2,3@c:3", **peers), "controller")
    assert named.grpc_addresses() == {1: "a:1", 2: "b:2", 3: "c:3"}


# --- data directory ------------------------------------------------------------------


def test_directory_keeps_its_identity(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path / "d", 1)
    with pytest.raises(StartupError, match="is used by a running process"):
        DataDirectory(tmp_path / "d", 1)
    first.join_cluster(b"c" * 16)
    first.close()
    again = DataDirectory(tmp_path / "d", 1)
    assert (again.directory_id, again.cluster_id) == (first.directory_id, b"c" * 16)
    again.join_cluster(b"c" * 16)
    with pytest.raises(StartupError, match="belongs to cluster"):
        again.join_cluster(b"d" * 16)
    again.close()
    with pytest.raises(StartupError, match="controller 1, not 2"):
        DataDirectory(tmp_path / "d", 2)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("version=1", "version=2", "format version 2"),
        ("role=controller", "role=storage-node", "storage-node"),
        ("directory.id=", "directory.id=zz", "damaged"),
    ],
)
def test_wrong_directories_are_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    DataDirectory(tmp_path, 1).close()
    meta = tmp_path / META_FILE
    meta.write_text(meta.read_text().replace(old, new))
    with pytest.raises(StartupError, match=words):
        DataDirectory(tmp_path, 1)


def test_unwritable_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="give a directory"):
        DataDirectory(tmp_path / "file", 1)


# --- one controller, whole ------------------------------------------------------------------


class Process:
    """A one-controller cluster inside the test's event loop."""

    def __init__(self, directory: Path) -> None:
        self.raft_port, self.grpc_port = free_ports(2)
        self.directory = directory
        self.channels = ChannelPool()
        self.client = ControllerClient([f"127.0.0.1:{self.grpc_port}"], "test", self.channels)

    def settings(self, **changes: str) -> ControllerSettings:
        values = {
            "raft_peers": f"1@127.0.0.1:{self.raft_port}",
            "raft_bind": f"127.0.0.1:{self.raft_port}",
            "controllers": f"127.0.0.1:{self.grpc_port}",
            "grpc_bind": f"127.0.0.1:{self.grpc_port}",
            "http_bind": "",
            "data_dir": str(self.directory),
            "node_session_timeout_ms": "600",
            "node_heartbeat_interval_ms": "50",
            "leader_rebalance_interval_ms": "200",
            "raft_snapshot_every": "5",
        }
        return load_settings(ControllerSettings, flags(**(values | changes)), "controller")

    def start(self, **changes: str) -> None:
        self.life = Lifecycle("controller")
        self.task = asyncio.create_task(run(self.settings(**changes), self.life))

    async def stop(self) -> None:
        self.life.request_stop("test")
        await self.task
        await self.life.end_tasks()
        assert self.life.exit_code == 0
        # What a process would take along with it: threads that write snapshots or cut the journal may
        # still be at it on a slow disk, in the directory that the next run opens.
        await eventually(
            lambda: not any(thread.name.startswith("raft") for thread in threading.enumerate()),
            "the end of the quorum's threads",
        )

    async def register(self, node_id: int = -1, port: int = 1) -> api.RegisterNodeResponse:
        request = api.RegisterNodeRequest(
            node_id=node_id,
            directory_id=uuid.uuid4().bytes,
            grpc=common.Endpoint(host="127.0.0.1", port=port),
            process=common.ProcessInfo(feature_level=FEATURE_LEVEL),
        )
        reply: api.RegisterNodeResponse = await self.client.call("RegisterNode", request)
        assert not reply.error.code, reply
        return reply


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[Process]:
    made = Process(tmp_path / "data")
    made.start()
    yield made
    if not made.task.done():
        await made.stop()
    await made.channels.close()


async def heartbeat(stream: Any, reply: api.RegisterNodeResponse, version: int, **fields: Any) -> Any:
    beat = api.NodeHeartbeat(
        node_id=reply.node_id, node_epoch=reply.node_epoch, metadata_version=version, **fields
    )
    await stream.write(beat)
    return await stream.read()


async def test_node_lives_and_dies(process: Process) -> None:
    # No session ends by its timeout until the last part of this test.
    await process.stop()
    process.start(node_session_timeout_ms="600000")
    metadata = MetadataClient(process.client, "test", monotonic_ms)
    follow = asyncio.create_task(metadata.run())
    # Something listens at the nodes' addresses, at the second's until it dies.
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as mortal:
        alive = await process.register(port=server.getsockname()[1])
        dying = await process.register(port=mortal.getsockname()[1])
        streams = [await process.client.session("NodeSession") for _ in range(2)]
        for stream, reply in zip(streams, (alive, dying), strict=True):
            assert (await heartbeat(stream, reply, reply.version - 1)).fenced
            await heartbeat(stream, reply, reply.version)
        # Its stream may begin after all that.
        while sum(node.active for node in metadata.image.nodes.values()) < 2:
            assert await metadata.wait_for_version(metadata.image.version + 1, 60_000)
        wanted = [api.NewTopic(name="t", partition_count=2, replication_factor=2)]
        made = await process.client.call("CreateTopics", api.CreateTopicsRequest(topics=wanted))
        assert not made.topics[0].error.code
        # A broken stream and a refused connection: fenced without a timeout.
        mortal.close()
        streams[1].close()
        while not metadata.image.nodes[NodeId(dying.node_id)].fenced:
            assert await metadata.wait_for_version(metadata.image.version + 1, 60_000)
        topic = metadata.image.topic("t")
        assert topic is not None
        assert all(p.leader == alive.node_id and p.isr == (alive.node_id,) for p in topic.partitions.values())
        # A broken stream of a process that still listens: it is looked for, found and left alone.
        server.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                server.accept()[0].close()
        streams[0].close()
        server.settimeout(60)
        for _ in range(3):
            (await asyncio.to_thread(server.accept))[0].close()
        assert not metadata.image.nodes[NodeId(alive.node_id)].fenced
        # Until the session timeout.
        await process.stop()
        process.start()
        while not metadata.image.nodes[NodeId(alive.node_id)].fenced:
            assert await metadata.wait_for_version(metadata.image.version + 1, 60_000)
    follow.cancel()
    await asyncio.wait([follow])


def bootstrap_file(path: Path, user: str) -> Path:
    made = ScramMechanism.SHA_512.salted_password(b"secret", b"salt", 4096)
    users = [BootstrapUser(user, credential(ScramMechanism.SHA_512, b"salt", made, 4096))]
    path.touch(mode=0o600)
    path.write_text(to_text(users))
    return path


async def test_a_new_cluster_begins_with_the_users_of_a_file_and_an_old_one_does_not_read_it(
    tmp_path: Path,
) -> None:
    process = Process(tmp_path / "data")
    file = bootstrap_file(tmp_path / "users.json", "admin")

    async def users() -> set[str]:
        metadata = MetadataClient(process.client, "test", monotonic_ms)
        follow = asyncio.create_task(metadata.run())
        while not metadata.image.cluster_id:
            assert await metadata.wait_for_version(metadata.image.version + 1, 60_000)
        follow.cancel()
        await asyncio.wait([follow])
        return {key.user for key in metadata.image.security.credentials}

    file.chmod(0o644)
    process.start(bootstrap_users=str(file))
    with pytest.raises(StartupError, match=r"bootstrap_users: .* run `chmod 600 "):
        await process.task
    file.chmod(0o600)
    process.start(bootstrap_users=str(file))
    assert await users() == {"admin"}
    await process.stop()
    # Another user there counts no more, nor that there is no file.
    file.unlink()
    process.start(bootstrap_users=str(bootstrap_file(tmp_path / "users.json", "mallory")))
    assert await users() == {"admin"}
    await process.stop()
    file.unlink()
    process.start(bootstrap_users=str(file))
    assert await users() == {"admin"}
    await process.stop()
    await process.channels.close()


async def test_a_node_that_died_unseen_is_found_by_a_new_active_controller(process: Process) -> None:
    reply = await process.register()
    stream = await process.client.session("NodeSession")
    async with asyncio.timeout(60):
        while (await heartbeat(stream, reply, reply.version)).fenced:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await process.stop()
    process.start(node_session_timeout_ms="60000")
    metadata = MetadataClient(process.client, "test", monotonic_ms)
    follow = asyncio.create_task(metadata.run())
    async with asyncio.timeout(60):
        while (
            reply.node_id not in metadata.image.nodes
            or not metadata.image.nodes[NodeId(reply.node_id)].fenced
        ):
            await metadata.wait_for_version(metadata.image.version + 1, 100)
    follow.cancel()
    await asyncio.wait([follow])


async def test_controlled_shutdown(process: Process) -> None:
    # However slow this machine is: nobody counts as gone.
    await process.stop()
    process.start(node_session_timeout_ms="600000")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        await check_controlled_shutdown(
            process, await process.register(1, port), await process.register(2, port)
        )


async def check_controlled_shutdown(
    process: Process, first: api.RegisterNodeResponse, second: api.RegisterNodeResponse
) -> None:
    streams = [await process.client.session("NodeSession") for _ in range(2)]
    for stream, reply in zip(streams, (first, second), strict=True):
        await heartbeat(stream, reply, second.version)
        async with asyncio.timeout(60):
            while (await heartbeat(stream, reply, second.version)).fenced:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    wanted = [api.NewTopic(name="t", partition_count=4, replication_factor=2)]
    made = await process.client.call("CreateTopics", api.CreateTopicsRequest(topics=wanted))
    assert not made.topics[0].error.code, made
    metadata = MetadataClient(process.client, "test", monotonic_ms)
    follow = asyncio.create_task(metadata.run())
    assert await metadata.wait_for_version(made.version, 60_000)

    async def may_shutdown() -> bool:
        answer = await heartbeat(streams[0], first, made.version, want_shutdown=True)
        return bool(answer.may_shutdown)

    assert not await may_shutdown()
    topic_id = metadata.image.topic_ids["t"]
    while any(p.leader == 1 for p in metadata.image.topics[topic_id].partitions.values()):
        assert await metadata.wait_for_version(metadata.image.version + 1, 60_000)
    for _ in range(5):
        # The other node has not heard of the new leaders yet.
        await heartbeat(streams[1], second, made.version)
        assert not await may_shutdown()
    await heartbeat(streams[1], second, 1_000_000)
    async with asyncio.timeout(60):
        while not await may_shutdown():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    for stream in streams:
        stream.close()
    follow.cancel()
    await asyncio.wait([follow])


async def test_two_nodes_that_stop_at_once_go_one_after_the_other(process: Process) -> None:
    # However slow this machine is: nobody counts as gone.
    await process.stop()
    process.start(node_session_timeout_ms="600000")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        replies = [await process.register(n, port) for n in (1, 2, 3)]
        await check_one_after_the_other(process, replies)


async def check_one_after_the_other(process: Process, replies: list[api.RegisterNodeResponse]) -> None:
    streams = [await process.client.session("NodeSession") for _ in replies]

    async def beats(**fields: Any) -> list[bool]:
        """A heartbeat of each; what is given is of those that stop, 1 and 2. Who may."""
        answers = [
            await heartbeat(stream, reply, 1_000_000, **(fields if reply.node_id < 3 else {}))
            for stream, reply in zip(streams, replies, strict=True)
        ]
        return [bool(answer.may_shutdown) for answer in answers]

    metadata = MetadataClient(process.client, "test", monotonic_ms)
    follow = asyncio.create_task(metadata.run())
    async with asyncio.timeout(60):
        while sum(node.active for node in metadata.image.nodes.values()) < 3:
            await beats()
            await metadata.wait_for_version(metadata.image.version + 1, 50)
    wanted = [api.NewTopic(name="t", partition_count=4, replication_factor=3)]
    made = await process.client.call("CreateTopics", api.CreateTopicsRequest(topics=wanted))
    assert not made.topics[0].error.code, made
    # Min ISR is 2 of 3: one of them may go, and the other one would be missed.
    async with asyncio.timeout(60):
        while (  # noqa: ASYNC110
            let_go := await beats(want_shutdown=True, shutdown_left_ms=600_000)
        ) == [False] * 3:
            await asyncio.sleep(0.01)
    assert let_go.count(True) == 1
    for _ in range(5):
        assert (await beats(want_shutdown=True, shutdown_left_ms=600_000)).count(True) == 1
    assert await metadata.wait_for_version(made.version, 60_000)
    topic = metadata.image.topic("t")
    assert topic is not None
    assert all(len(p.isr) == 2 for p in topic.partitions.values())
    # Nobody comes back, and its time is up: it goes all the same.
    async with asyncio.timeout(60):
        while await beats(  # noqa: ASYNC110
            want_shutdown=True, shutdown_left_ms=1
        ) != [True, True, False]:
            await asyncio.sleep(0.01)
    for stream in streams:
        stream.close()
    follow.cancel()
    await asyncio.wait([follow])


async def test_gateway_leaves(process: Process) -> None:
    # However slow this machine is: it does not count as gone, nor is it looked for, between two beats.
    await process.stop()
    process.start(node_session_timeout_ms="600000", node_heartbeat_interval_ms="60000")
    request = api.RegisterGatewayRequest(
        gateway_id="g",
        grpc=common.Endpoint(host="127.0.0.1", port=1),
        process=common.ProcessInfo(feature_level=FEATURE_LEVEL),
    )
    reply = await process.client.call("RegisterGateway", request)
    stream = await process.client.session("GatewaySession")

    async def beat(**fields: Any) -> Any:
        await stream.write(api.GatewayHeartbeat(gateway_id="g", gateway_epoch=reply.gateway_epoch, **fields))
        return await stream.read()

    answer = await beat()
    assert not answer.error.code
    async with asyncio.timeout(60):
        while not (await beat(want_shutdown=True)).may_shutdown:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (await beat()).error.code == ErrorCode.STALE_BROKER_EPOCH
    stream.close()


async def test_state_survives_a_restart(process: Process) -> None:
    blocks = [
        (await process.client.call("AllocateProducerIds", api.AllocateProducerIdsRequest())).first_producer_id
        for _ in range(23)
    ]
    # The cluster, the blocks, and the controllers themselves: those come with a tick, now and then after all else.
    async with asyncio.timeout(60):
        before = await process.client.call("DescribeQuorum", api.DescribeQuorumRequest())
        while before.version < 1 + len(blocks) + 1:
            await asyncio.sleep(0.01)
            before = await process.client.call("DescribeQuorum", api.DescribeQuorumRequest())
    await eventually((process.directory / SNAPSHOT_FILE).exists, "a snapshot")
    await process.stop()
    process.start()
    following = await process.client.call("AllocateProducerIds", api.AllocateProducerIdsRequest())
    assert following.first_producer_id == max(blocks) + 1000
    after = await process.client.call("DescribeQuorum", api.DescribeQuorumRequest())
    assert after.cluster_id == before.cluster_id
    assert after.version == before.version + 1
    assert after.term > before.term


async def test_damaged_snapshot_refuses_to_start(process: Process) -> None:
    for _ in range(23):
        await process.client.call("AllocateProducerIds", api.AllocateProducerIdsRequest())
    path = process.directory / SNAPSHOT_FILE
    await eventually(path.exists, "a snapshot")
    await process.stop()
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    process.start()
    with pytest.raises(StartupError, match="raft-snapshot"):
        await process.task


async def test_taken_raft_port_is_named(process: Process) -> None:
    await process.register()
    other = Process(process.directory.with_name("other"))
    other.raft_port = process.raft_port
    other.start()
    with pytest.raises(StartupError, match=f"{process.raft_port}.*raft_bind"):
        await other.task
    await other.life.end_tasks()
    await other.channels.close()


async def test_insecure_raft_bind_is_refused(process: Process) -> None:
    other = Process(process.directory.with_name("other"))
    other.start(raft_bind="0.0.0.0:4001")
    with pytest.raises(StartupError, match=r"raft_bind.*allow_insecure_bind"):
        await other.task
    await other.channels.close()


async def test_garbage_on_the_raft_port_is_closed_and_counted(process: Process) -> None:
    await process.register()
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, bytes(64), b"\x08\x00\x00\x00" + b"x" * 12):
        reader, writer = await asyncio.open_connection("127.0.0.1", process.raft_port)
        writer.write(garbage)
        async with asyncio.timeout(60):
            assert await reader.read(100) == b""
        writer.close()
    name = "penstock_controller_raft_bad_frames_total"
    async with asyncio.timeout(60):
        while process.life.registry.get_sample_value(name) != 4:  # noqa: ASYNC110 - counted on another thread
            await asyncio.sleep(0.01)
    told = {"event": "refused", "outcome": "refused"}
    assert process.life.registry.get_sample_value("penstock_audit_events_total", told) == 4
    await process.register()


async def test_a_watcher_ahead_of_this_controller_is_sent_on(process: Process) -> None:
    await process.register()
    call = process.client.stub(f"127.0.0.1:{process.grpc_port}").WatchMetadata(
        api.WatchMetadataRequest(from_version=10_000, feature_level=FEATURE_LEVEL)
    )
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call.read()
    assert failure.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_journal_error_ends_the_process(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    await process.register()

    def fail(_fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.fdatasync", fail)
    with pytest.raises(PenstockError):
        await process.client.call("AllocateProducerIds", api.AllocateProducerIdsRequest(), timeout_ms=500)
    async with asyncio.timeout(60):
        await process.life.failed.wait()
    assert process.life.exit_code == 70
    await process.task
    await process.life.end_tasks()


async def test_a_cluster_is_founded_at_the_level_of_this_build(process: Process) -> None:
    metadata = MetadataClient(process.client, "test", monotonic_ms)
    follow = asyncio.create_task(metadata.run())
    assert await metadata.wait_for_version(1, 60_000)
    image = metadata.image
    assert len(image.cluster_id) == 16
    assert level_of(image) == FEATURE_LEVEL
    assert image.features == {"metadata.level": FEATURE_LEVEL, "transaction.version": 2}
    assert image.feature_versions == {"metadata.level": 1, "transaction.version": 1}
    assert len(image.security.secrets[SIGN_IN_KEY]) == 32
    follow.cancel()
    await asyncio.wait([follow])
