"""`penstock debug bundle`: each process by itself, in files of its own; what is not told is named."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
from click.testing import CliRunner

from penstock.cli.bundle import bundle
from penstock_core.metadata.backup import BackupHead, encode
from penstock_core.metadata.image import MetadataImage
from penstock_proto.v1 import controller_pb2, metadata_pb2
from penstock_proto.v1 import operations_pb2 as pb
from unit.client.admin_gateway import CLUSTER_ID, Admin, serving

LINE = {"timestamp": "2026-11-25T02:01:52Z", "event": "unwell", "topic": "canary", "peer": "10.1.2.3:5"}


class Telling(Admin):
    """Knows a controller, three nodes (one of them of an older build) and itself."""

    def __init__(self) -> None:
        super().__init__()
        self.readings: dict[str, int] = {}

    def DescribeQuorum(self, request: Any, context: Any) -> Any:  # noqa: N802
        return controller_pb2.DescribeQuorumResponse(
            controller_id=1, members=[controller_pb2.QuorumMember(controller_id=1, address="ctl-1.example:9")]
        )

    def CheckCluster(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.CheckClusterResponse()

    def DescribeCapacity(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.DescribeCapacityResponse()

    def ExportMetadata(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        assert not request.secrets
        records = [metadata_pb2.MetadataRecord(cluster=metadata_pb2.ClusterRecord(cluster_id=CLUSTER_ID))]
        records += [
            metadata_pb2.MetadataRecord(
                node=metadata_pb2.NodeRecord(node_id=n, node_epoch=n, directory_id=bytes(16))
            )
            for n in (1, 2)
        ]
        image = MetadataImage.from_records(records, 3)
        head = BackupHead(CLUSTER_ID.hex(), image.version, 1, 1, 0, secrets=False)
        for part in encode(image, head):
            yield pb.ExportMetadataResponse(data=bytes(part))

    def Explain(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise AssertionError("no partition is unwell")

    DescribeStrays = DeleteStray = ExecuteOperation = RecoverTopics = Explain

    def DescribeProcess(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        if request.process == "node-2":
            context.abort(
                grpc.StatusCode.UNIMPLEMENTED, "node-2 is of an older build and does not tell of itself"
            )
        if "metrics" in request.parts or not request.parts:
            number = self.readings[request.process] = self.readings.get(request.process, 0) + 1
            yield pb.DescribeProcessResponse(part="metrics", data=b'lag{group="night shift"} %d\n' % number)
        if "settings" in request.parts or not request.parts:
            settings = {"gateway_id": "gateway-1", "raft_peers": ["1@ctl-1.example:9"]}
            yield pb.DescribeProcessResponse(part="settings", data=json.dumps(settings).encode())
        if not request.parts:
            text = f"{json.dumps(LINE)}\n".encode()
            yield pb.DescribeProcessResponse(part="log", data=text[:20])
            yield pb.DescribeProcessResponse(part="log", data=text[20:])
            yield pb.DescribeProcessResponse(
                part="directory", data=b"5\t1\tcanary-0/\n5\t1\tcanary-0/00.log\n"
            )


def made(tmp_path: Path, *options: str) -> dict[str, str]:
    file = tmp_path / "bundle.tar.gz"
    with serving(Telling()) as address:
        words = ["-o", str(file), "--gateway", address, "--metrics-interval", "0", *options]
        done = CliRunner().invoke(bundle, words, catch_exceptions=False, obj={})
    assert done.exit_code == 0, done.output
    with tarfile.open(file) as archive:
        streams = {m.name.partition("/")[2]: archive.extractfile(m) for m in archive}
        return {name: stream.read().decode(errors="replace") for name, stream in streams.items() if stream}


def test_each_process_has_its_files_and_two_readings_of_its_metrics(tmp_path: Path) -> None:
    found = made(tmp_path)
    for name in ("controller-1", "node-1", "gateway-1"):
        assert json.loads(found[f"processes/{name}/log.jsonl"]) == LINE
        assert "canary-0/00.log" in found[f"processes/{name}/directory.txt"]
        first, second = (int(found[f"metrics/{name}-{n}.txt"].split()[-1]) for n in (1, 2))
        assert first < second
    missing = json.loads(found["manifest.json"])["missing"]
    assert missing == {"processes/node-2": "node-2 is of an older build and does not tell of itself"}


def test_no_name_is_in_any_file_of_an_anonymous_one(tmp_path: Path) -> None:
    found = made(tmp_path, "--anonymous")
    assert "processes/controller-1/log.jsonl" in found
    for name, text in found.items():
        for said in ("canary", "night", "10.1.2.3", "ctl-1.example"):
            assert said not in name + text, (said, name)
    host = json.loads(found["processes/node-1/settings.json"])["raft_peers"][0]
    assert host.removeprefix("1@") == json.loads(found["quorum.json"])["members"][0]["address"]
