"""kafka-acls and kafka-configs say of Penstock what they say of Kafka: the recorded transcript is Kafka's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.java import security_tools
from conformance.secure_world import Doors, secure_penstock
from support.java import needs_java, shared_driver

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1200), needs_java]


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with secure_penstock(tmp_path_factory.mktemp("secure")) as (_, proxy, _direct):
        yield proxy


def test_the_tools_of_users_acls_and_quotas_say_what_they_say_of_kafka(doors: Doors, tmp_path: Path) -> None:
    oracle = security_tools.oracle()
    assert set(oracle) == {step.name for step in security_tools.STEPS}, "record the transcript again"
    wrong = []
    for line, run in security_tools.session(shared_driver(), doors, tmp_path):
        wanted = oracle[line.step]
        if (line.exit, line.said) != (wanted.exit, wanted.said):
            wrong.append(
                f"{line.step}: Kafka {wanted.exit} {wanted.said}\n Penstock {line.exit} {line.said}\n{run.text}"
            )
    assert not wrong, "\n".join(wrong)
