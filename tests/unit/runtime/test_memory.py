"""What a role does not load, and that the allocator's bounds can be set anywhere."""

import subprocess
import sys

import pytest

from penstock_runtime import memory
from penstock_runtime.memory import bound_allocator, trim_allocator
from support.waiting import eventually


def test_http_comes_without_the_certificate_authorities() -> None:
    code = (
        "import sys, ssl\n"
        "from penstock_runtime.http import web\n"
        "import aiohttp.connector\n"
        "assert sys.modules['ssl'] is ssl\n"
        "assert aiohttp.connector.ssl is None and web.Application()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def test_the_allocator_takes_its_bounds() -> None:
    bound_allocator()
    trim_allocator()


async def test_memory_goes_back_once_for_much_that_came_free(monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[None] = []
    monkeypatch.setattr(memory, "trim_allocator", lambda: trims.append(None))
    monkeypatch.setattr(memory, "TRIM_REST_S", 0.01)
    trimmer = memory.Trimmer()
    for _ in range(2):
        trims.clear()
        for _ in range(1_000):
            trimmer.freed()
        await eventually(lambda: bool(trims), "it is given back")
        assert len(trims) == 1


@pytest.mark.parametrize("role", ["controller", "storage_node", "gateway"])
def test_no_role_loads_a_crypto_package(role: str) -> None:
    """It is installed where `penstock cert` is, and PySyncObj would load it."""
    code = (
        f"import sys, penstock_{role}.role\n"
        "bad = {n.split('.')[0] for n in sys.modules} & {'cryptography', 'OpenSSL', 'jwt', '_cffi_backend'}\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
