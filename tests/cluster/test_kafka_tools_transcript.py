"""Kafka's own command line tools say of Penstock what they say of Kafka: the recorded transcript is Kafka's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.java import tools
from penstock.local.cluster import LocalCluster
from support.java import needs_java, run_tool_process, shared_driver
from support.kafka import create_topic

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    needs_java,
]


@pytest.mark.parametrize("mode", ["proxy", "direct"])
def test_the_tools_say_what_they_say_of_kafka(
    shared_cluster: LocalCluster, tmp_path: Path, mode: str
) -> None:
    bootstrap = shared_cluster.bootstrap if mode == "proxy" else shared_cluster.direct_bootstrap
    oracle = tools.recorded()
    assert set(oracle) == {step.name for step in tools.STEPS}, "record the transcript again"
    says = {step.name: step.says for step in tools.STEPS}
    wrong = []
    steps = tools.STEPS if mode == "proxy" else tools.FEW_STEPS
    for line, run in tools.play(shared_driver(), bootstrap, tmp_path, steps, proxy=mode == "proxy"):
        wanted = oracle[line.step]
        if (line.exit, line.said) != (wanted.exit, wanted.said) or not re.search(says[line.step], run.text):
            wrong.append(f"{line.step}: Kafka {wanted.exit} {wanted.said}\n Penstock {run.exit} {run.text}")
    assert not wrong, "\n".join(wrong)


def test_what_one_verifiable_client_sends_the_other_gets(shared_cluster: LocalCluster) -> None:
    """These two talk to the JVM of their end, so each has one to itself."""
    create_topic(shared_cluster.bootstrap, "verifiable", 3)
    address = ("--bootstrap-server", shared_cluster.bootstrap, "--topic", "verifiable")
    sent = run_tool_process("VerifiableProducer", *address, "--max-messages", "500", "--acks", "-1")
    assert '"sent":500,"acked":500' in sent.stdout, sent.stdout[-500:]
    for protocol in ("classic", "consumer"):
        member = ("--group-id", f"verifiable-{protocol}", "--group-protocol", protocol)
        got = run_tool_process(
            "VerifiableConsumer", *address, *member, "--reset-policy", "earliest", "--max-messages", "500"
        )
        counts = [int(n) for n in re.findall(r'"records_consumed","count":(\d+)', got.stdout)]
        assert sum(counts) == 500, got.stdout[-500:]
        assert '"name":"offsets_committed"' in got.stdout
        assert '"success":false' not in got.stdout
