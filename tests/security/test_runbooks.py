"""The runbooks of docs/security.md, each as it is written there: the commands and settings are read from the page.

Real processes; only addresses, directories and how a password is typed are this test's own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.main import run
from penstock.connector import Connector, Refused
from penstock.local import ports, secure
from penstock.local.cluster import LocalCluster
from penstock.local.plan import CONTROLLER, GATEWAY, certificate_name
from penstock_core.security.client_file import ClientFile
from support.cluster import running_cluster, start_ready
from support.stock_clients import lines_of
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
PATIENCE_S = 60.0
TIMEOUT_S = 10.0
NEW_PASSWORD = "found-again-1"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("runbooks") / "c"
    with running_cluster(directory, controllers=1, nodes=3, secure=True, steady=True) as running:
        yield running


def blocks(title: str, language: str) -> list[str]:
    """The code of a section of the page."""
    section = PAGE.read_text().partition(f"### {title}\n")[2].partition("\n## ")[0].partition("\n### ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def commands(title: str) -> list[list[str]]:
    """Each `penstock` command of a section, as words."""
    lines = "".join(blocks(title, "sh")).splitlines()
    found = [line.partition("#")[0].split() for line in lines if line.startswith("penstock ")]
    assert found
    return [words[1:] for words in found]


def controllers(cluster: LocalCluster) -> str:
    return ",".join(f"127.0.0.1:{m.ports['grpc']}" for m in cluster.state.members if m.role == CONTROLLER)


def fenced(cluster: LocalCluster) -> int:
    """How many nodes the controller has fenced."""
    (controller,) = cluster.state.of_role(CONTROLLER)
    url = f"http://127.0.0.1:{controller.ports['http']}/metrics"
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
        (count,) = re.findall(rb"^penstock_controller_nodes_fenced (\S+)", response.read(), re.MULTILINE)
    return int(float(count))


def comes_in(cluster: LocalCluster, password: str) -> bool:
    """Whether the admin signs in by that password."""
    lines = dict(lines_of(secure.admin_file(cluster.directory))) | {"sasl.password": password}
    text = "".join(f"{key}={value}\n" for key, value in lines.items())
    connector = Connector(ClientFile.parse(text, "changed.properties"))
    port = cluster.state.of_role(GATEWAY)[0].ports["kafka"]
    try:
        with connector.open("localhost", port, TIMEOUT_S) as connection:
            connector.sign_in(connection)
    except Refused:
        return False
    return True


def test_a_lost_admin_is_brought_back(cluster: LocalCluster, tmp_path: Path) -> None:
    lines = lines_of(secure.admin_file(cluster.directory))
    old = lines["sasl.password"]
    assert comes_in(cluster, old)
    made = secure.directory_of(cluster.directory)
    issue, password = commands("The admin's password is lost")
    issue[issue.index("secure")] = str(made)
    assert issue[:2] == ["cert", "issue"] and run(issue) == 0

    (settings,) = blocks("The admin's password is lost", "toml")
    bind = f"127.0.0.1:{ports.choose_base()}"
    text = settings.replace("ctl-1:5001", controllers(cluster)).replace("127.0.0.1:9099", bind)
    text = text.replace("secure/gateway-rescue", str(made / "gateway-rescue"))
    file = tmp_path / "rescue.toml"
    file.write_text(text)
    log = (tmp_path / "rescue.log").open("w")
    rescue = subprocess.Popen(
        [sys.executable, "-m", "penstock_gateway", "--config", str(file)],
        stdout=log,
        stderr=log,
        env={**os.environ},
    )
    try:
        words = (tmp_path / "rescue.log").read_text
        wait_for(
            lambda: "] ready " in words() or rescue.poll() is not None, "the gateway is there", PATIENCE_S
        )
        assert rescue.poll() is None, words()
        typed = tmp_path / "password"
        typed.write_text(NEW_PASSWORD + "\n")
        typed.chmod(0o600)
        password[password.index("127.0.0.1:9099")] = bind
        assert run([*password, "--password-file", str(typed)]) == 0
    finally:
        rescue.terminate()
        rescue.wait(PATIENCE_S)
        log.close()
    wait_for(lambda: comes_in(cluster, NEW_PASSWORD), "the new password counts", PATIENCE_S)
    assert not comes_in(cluster, old)


def test_a_compromised_node_is_shut_out_and_comes_back_with_another_certificate(
    cluster: LocalCluster,
) -> None:
    made = secure.directory_of(cluster.directory)
    refuse, issue = commands("A storage node is not ours any more")
    assert refuse[:2] == ["cert", "refuse"] and issue[:2] == ["cert", "issue"]
    node = cluster.state.member("node-3")
    own = made / f"storage-node-{certificate_name(node)}"
    refuse[2] = str(own)
    refuse[refuse.index("ctl-1:5001")] = controllers(cluster)
    refuse[refuse.index("secure/admin-ann")] = str(secure.admin_certificate(cluster.directory))
    assert run(refuse) == 0
    # It is cut off while it runs: nobody takes what it has.
    wait_for(lambda: fenced(cluster) == 1, "it is fenced", PATIENCE_S)
    cluster.kill("node-3")
    issue[issue.index("secure")] = str(made)
    issue[issue.index("node-7")] = certificate_name(node)
    assert run([*issue, "--san", "localhost"]) == 0
    start_ready(cluster, "node-3")
    assert fenced(cluster) == 0
