"""A network of this run's own: a namespace per process, a bridge in a namespace between them.

Rules: nothing here touches this machine's own network but one veth end (removed with the
bridge's namespace), which gives the clients of the run a way in. Faults are iptables rules
within the namespaces, which vanish with them. Addresses are of RFC 2544's test range.

Theory: the bridge stands in a namespace of its own because a host's FORWARD chain may drop
what it bridges. A dropped packet is silence, as on a network that broke: neither end is
told. Connections that are open when a rule comes hang until their own timers fire.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache

from chaos.janitor import Janitor, remove_namespace

HOST = "host"
ATTEMPTS_MAX = 20


@cache
def missing() -> str:
    """Why networks cannot be made here; empty when they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [tool for tool in ("ip", "iptables", "nsenter") if shutil.which(tool) is None]
    if absent:
        return f"no {', '.join(absent)} here (Debian: apt-get install iproute2 iptables)"
    # A root without privileges, as in many containers, is told only by trying.
    probe = f"chaos-{os.getpid()}-probe"
    done = subprocess.run(["ip", "netns", "add", probe], check=False, capture_output=True, text=True)
    remove_namespace(probe)
    return f"network namespaces are refused here: {done.stderr.strip()}" if done.returncode else ""


def run(*command: str, given: str = "") -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, input=given)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


class Network:
    """Namespaces for `names`, joined by a bridge; `HOST` is this machine's own end."""

    def __init__(self, names: Sequence[str], janitor: Janitor) -> None:
        self._names = list(names)
        self._janitor = janitor
        number = random.SystemRandom().randrange(1, 250)
        for _ in range(ATTEMPTS_MAX):
            if f"198.19.{number}." not in run("ip", "-o", "addr"):
                break
            number = random.SystemRandom().randrange(1, 250)
        self._prefix = f"chaos-{os.getpid()}-{number}"
        self._subnet = f"198.19.{number}"
        self._host_device = f"pchaos{number}"

    def address(self, name: str) -> str:
        return f"{self._subnet}.{1 if name == HOST else 11 + self._names.index(name)}"

    def namespace(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def entering(self, name: str) -> list[str]:
        """The words before a command that shall run in the namespace of `name`; the pid stays its own."""
        return ["nsenter", f"--net=/run/netns/{self.namespace(name)}"]

    def make(self) -> None:
        hub = self.namespace("hub")
        self._add_namespace(hub)
        run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", hub, "link", "set", "bridge", "up")
        run("ip", "link", "add", self._host_device, "type", "veth", "peer", "name", "to-host", "netns", hub)
        run("ip", "-n", hub, "link", "set", "to-host", "master", "bridge", "up")
        run("ip", "addr", "add", f"{self.address(HOST)}/24", "dev", self._host_device)
        run("ip", "link", "set", self._host_device, "up")
        for index, name in enumerate(self._names):
            own = self.namespace(name)
            self._add_namespace(own)
            pair = ("netns", hub, "type", "veth", "peer", "name", "eth0", "netns", own)
            run("ip", "link", "add", f"to-{index}", *pair)
            run("ip", "-n", hub, "link", "set", f"to-{index}", "master", "bridge", "up")
            run("ip", "-n", own, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            run("ip", "-n", own, "link", "set", "eth0", "up")
            run("ip", "-n", own, "link", "set", "lo", "up")

    def remove(self) -> None:
        for name in (*self._names, "hub"):
            remove_namespace(self.namespace(name))

    # --- faults ------------------------------------------------------------------

    def drop(self, sources: Sequence[str], target: str) -> None:
        """What the sources send to `target` is dropped there, all from one moment on."""
        self._filter(
            target, *(f"-A INPUT -s {self.address(one)} -j DROP" for one in sources if one != target)
        )

    def isolate(self, name: str, others: Sequence[str]) -> None:
        """Neither hears the other. From the first rule on `name` hears none of them."""
        away = [other for other in others if other != name]
        self.drop(away, name)
        for other in away:
            if other != HOST:
                self.drop([name], other)
            else:
                # This machine's own tables are not touched.
                self._filter(name, f"-A OUTPUT -d {self.address(HOST)} -j DROP")

    def lose(self, name: str, probability: float) -> None:
        """Packets to `name` get lost, each by this chance."""
        self._filter(
            name, f"-A INPUT -i eth0 -m statistic --mode random --probability {probability:.3f} -j DROP"
        )

    def reset_tcp(self, source: str, target: str) -> None:
        """Whatever `source` sends to `target` over TCP is answered with a reset."""
        self._filter(target, f"-A INPUT -s {self.address(source)} -p tcp -j REJECT --reject-with tcp-reset")

    def slow(self, name: str, kbit_per_s: int) -> None:
        """What `name` sends leaves it no faster than that."""
        self._in(name, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", f"{kbit_per_s}kbit",
                 "burst", "32kbit", "latency", "400ms")  # fmt: skip

    def mend(self) -> None:
        """The network as it was made."""
        for name in self._names:
            self._in(name, "iptables", "-w", "-F", "INPUT")
            self._in(name, "iptables", "-w", "-F", "OUTPUT")
            subprocess.run(
                [*self.entering(name), "tc", "qdisc", "del", "dev", "eth0", "root"],
                check=False,
                capture_output=True,
            )

    def _filter(self, name: str, *rules: str) -> None:
        """Add rules to the namespace of `name`, in one step."""
        text = "\n".join(["*filter", *rules, "COMMIT", ""])
        run(*self.entering(name), "iptables-restore", "-w", "--noflush", given=text)

    def _in(self, name: str, *command: str) -> None:
        run(*self.entering(name), *command)

    def _add_namespace(self, name: str) -> None:
        self._janitor.namespace(name)
        run("ip", "netns", "add", name)
