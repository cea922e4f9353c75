"""penstock_core knows no event loop and no transport."""

import subprocess
import sys

CODE = """
import pkgutil, sys, importlib
import penstock_core
for module in pkgutil.walk_packages(penstock_core.__path__, "penstock_core."):
    importlib.import_module(module.name)
bad = sorted({name.split(".")[0] for name in sys.modules} &
             {"asyncio", "grpc", "aiohttp", "uvloop", "kio", "aiokafka", "hypothesis", "penstock_runtime"})
print(",".join(bad))
"""


def test_importing_every_module_loads_no_loop_and_no_transport() -> None:
    """kio and aiokafka are on the list for what their imports cost: they are loaded in part, or late."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CODE], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


def test_kio_comes_without_hypothesis() -> None:
    code = (
        "import sys; from penstock_kafka.wire import codec; codec.preload()\n"
        "assert 'kio.serial' in sys.modules and 'hypothesis' not in sys.modules\n"
        "import hypothesis.strategies\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
