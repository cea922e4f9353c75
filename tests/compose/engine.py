"""What the compose test needs where no image can be pulled and no engine runs.

`ensure_engine` returns a running Docker Engine, starting Debian's dockerd when the test
runs as root and none answers. `ensure_base_image` gives the image that the Dockerfiles
start from: python:3.11-slim when it is there or can be pulled, otherwise one that is made
with debootstrap. `ensure_edge_image` does the same for haproxy; what is made is made at once.

Images that were made are kept in the engine, so only the first run pays for them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import docker
from docker.errors import ImageNotFound

PYTHON_IMAGE = "python:3.11-slim"
EDGE_IMAGE = "haproxy:2.8-alpine"
MADE_BASE_IMAGE = "penstock-test/base:bookworm"
MADE_EDGE_IMAGE = "penstock-test/edge:bookworm"
ENGINE_START_TIMEOUT_S = 180
PULL_TIMEOUT_S = 60
CALL_TIMEOUT_S = 300
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")


class EngineMissing(Exception):
    """No engine answers and none can be started here; the text says why."""


def ensure_engine(log_path: Path) -> tuple[docker.DockerClient, subprocess.Popen[bytes] | None]:
    """A client of a running engine, and the dockerd process if this call started it."""
    started = None if _answers() else _start_engine(log_path)
    return docker.from_env(timeout=CALL_TIMEOUT_S), started


def _answers() -> bool:
    # By the command, since the library leaves its socket open when nobody answers.
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0
    except subprocess.TimeoutExpired:
        return False  # it listens, and is not done with its start
    except FileNotFoundError:
        raise EngineMissing("the docker command is not installed") from None


def _start_engine(log_path: Path) -> subprocess.Popen[bytes]:
    binary = shutil.which("dockerd") or shutil.which("dockerd", path="/usr/sbin:/sbin")
    if binary is None:
        raise EngineMissing("no Docker Engine answers and dockerd is not installed")
    if os.geteuid() != 0:
        raise EngineMissing("no Docker Engine answers and only root may start dockerd")
    with log_path.open("wb") as log:
        process = subprocess.Popen([binary], stdout=log, stderr=log, start_new_session=True)
    deadline = time.monotonic() + ENGINE_START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        if _answers():
            return process
        time.sleep(0.2)
    process.terminate()
    process.wait(timeout=120)
    tail = log_path.read_text(errors="replace").splitlines()[-3:]
    raise EngineMissing("dockerd did not start: " + " | ".join(tail))


def ensure_base_image(client: docker.DockerClient) -> str:
    """Name of an image with Python 3.11, venv and pip."""
    return _ensure(client, PYTHON_IMAGE, MADE_BASE_IMAGE)


def ensure_edge_image(client: docker.DockerClient) -> str:
    """Name of an image that runs haproxy with /usr/local/etc/haproxy/haproxy.cfg."""
    return _ensure(client, EDGE_IMAGE, MADE_EDGE_IMAGE)


def _ensure(client: docker.DockerClient, image: str, made: str) -> str:
    for name in (image, made):
        if _is_present(client, name):
            return name
    if _pull(image):
        return image
    _make_images()
    return made


def _make_images() -> None:
    """Both, of one Debian that has what either needs: to unpack and set up a second one takes as long again."""
    packages = "python3,python3-pip,python3-venv,ca-certificates,haproxy"
    with tempfile.TemporaryDirectory(prefix="penstock-images-") as scratch:
        root = Path(scratch) / "root"
        _run("debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", str(root))
        (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        for marker in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
            marker.unlink()
        # The host may trust a certificate authority of its own network.
        if CA_BUNDLE.exists():
            shutil.copyfile(CA_BUNDLE, root / CA_BUNDLE.relative_to("/"))
        shutil.rmtree(root / "var/cache/apt/archives", ignore_errors=True)
        _import(root, MADE_BASE_IMAGE, f"ENV PIP_CERT={CA_BUNDLE}", 'CMD ["python3"]')
        command = '["haproxy", "-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]'
        _import(root, MADE_EDGE_IMAGE, f"CMD {command}")


def _is_present(client: docker.DockerClient, name: str) -> bool:
    try:
        client.images.get(name)
    except ImageNotFound:
        return False
    return True


def _pull(name: str) -> bool:
    try:
        done = subprocess.run(
            ["docker", "pull", "--quiet", name], capture_output=True, timeout=PULL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _import(root: Path, name: str, *changes: str) -> None:
    options = [part for change in changes for part in ("--change", change)]
    with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as archive:
        _run("docker", "import", *options, "-", name, stdin=archive.stdout)


def _run(*command: str, stdin: object = None) -> None:
    done = subprocess.run(command, stdin=stdin, capture_output=True, check=False)  # type: ignore[call-overload]
    if done.returncode != 0:
        tail = (done.stderr or done.stdout).decode(errors="replace").splitlines()[-5:]
        raise EngineMissing(f"{command[0]} failed: " + " | ".join(tail))
