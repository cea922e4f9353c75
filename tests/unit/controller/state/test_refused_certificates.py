"""Certificates are refused and allowed again by their serial numbers."""

from __future__ import annotations

import pytest

from penstock_controller.state.refused_certificates import REFUSED_MAX, alter_refused_certificates
from penstock_core.errors import ErrorCode
from penstock_core.metadata.security import RefusedCertificate
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb
from unit.controller.state.test_nodes import Cluster


def alter(cluster: Cluster, *changes: pb.RefusedCertificateRecord, own: str = "") -> int:
    request = api.AlterRefusedCertificatesRequest(changes=changes)
    made = alter_refused_certificates(cluster.context, request, own)
    cluster.do(made)
    if not made.reply.error.code:
        assert [r.serial for r in made.reply.refused] == sorted(cluster.image.security.refused_certificates)
    return made.reply.error.code


def refuse(serial: str, reason: str = "", not_after_ms: int = 0) -> pb.RefusedCertificateRecord:
    return pb.RefusedCertificateRecord(serial=serial, reason=reason, not_after_ms=not_after_ms)


def test_serial_numbers_are_refused_however_they_are_written_and_allowed_again() -> None:
    cluster = Cluster(level=2)
    later = 2_000_000_000_000
    assert alter(cluster, refuse("0A:1B", "stolen", later), refuse("0x00ff")) == 0
    assert cluster.image.security.refused_certificates == {
        "a1b": RefusedCertificate("stolen", later),
        "ff": RefusedCertificate("", 0),
    }
    version = cluster.image.version
    assert alter(cluster, refuse("a1b", "stolen", later)) == 0
    assert alter(cluster) == 0
    assert cluster.image.version == version
    assert alter(cluster, pb.RefusedCertificateRecord(serial="A1B", removed=True)) == 0
    assert list(cluster.image.security.refused_certificates) == ["ff"]


def test_a_record_goes_when_its_certificate_has_run_out() -> None:
    cluster = Cluster(level=2)
    assert alter(cluster, refuse("1", not_after_ms=1_000), refuse("3")) == 0
    request = api.AlterRefusedCertificatesRequest(changes=[refuse("2")])
    cluster.do(alter_refused_certificates(cluster.context, request, now_ms=2_000))
    assert list(cluster.image.security.refused_certificates) == ["3", "2"]


@pytest.mark.parametrize("bad", ["", "xyz", "-1", "1" * 41, "a b g"])
def test_what_is_no_serial_number_is_refused_and_nothing_else_of_the_request_done(bad: str) -> None:
    cluster = Cluster(level=2)
    assert alter(cluster, refuse("1"), refuse(bad)) == ErrorCode.INVALID_REQUEST
    assert not cluster.image.security.refused_certificates


def test_one_that_is_not_refused_cannot_be_allowed() -> None:
    gone = pb.RefusedCertificateRecord(serial="5", removed=True)
    assert alter(Cluster(level=2), gone) == ErrorCode.RESOURCE_NOT_FOUND


def test_the_deciding_controller_does_not_cut_itself_off() -> None:
    assert alter(Cluster(level=2), refuse("5"), own="5") == ErrorCode.INVALID_REQUEST


def test_there_is_a_bound() -> None:
    cluster = Cluster(level=2)
    assert alter(cluster, *(refuse(f"{i:x}") for i in range(REFUSED_MAX + 1))) == ErrorCode.INVALID_REQUEST


def test_below_level_two_nothing_is_refused() -> None:
    cluster = Cluster(level=1)
    assert alter(cluster) == 0
    assert alter(cluster, refuse("5")) == ErrorCode.UNSUPPORTED_VERSION
