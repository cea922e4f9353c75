"""A stand-in for any role: reads the same settings file, opens the same ports, does nothing.

It lets the tests of `penstock local` cause what a real role should never do: die at its
start, ignore TERM, never become ready. Behaviour comes by files in its working directory.
The file `told` says that it was asked whether it is ready, `asked` has a byte for every Metadata.
"""

from __future__ import annotations

import http.server
import signal
import socketserver
import struct
import sys
import threading
import tomllib
from pathlib import Path


class Http(http.server.BaseHTTPRequestHandler):
    """Answers /readyz: 200, or 503 while the file `unready` exists."""

    def do_GET(self) -> None:
        unready = Path("unready").exists()
        Path("told").touch()
        self.send_response(503 if unready else 200)
        self.end_headers()
        self.wfile.write(b"told so" if unready else b"ready")

    def log_message(self, format: str, *args: object) -> None:
        pass


class Kafka(socketserver.BaseRequestHandler):
    """Metadata v4 with as many nodes as the file `nodes` says, InitProducerId v0."""

    def handle(self) -> None:
        while head := self.request.recv(4):
            frame = self.request.recv(struct.unpack(">i", head)[0])
            api_key = struct.unpack_from(">h", frame)[0]
            if api_key == 3:
                with Path("asked").open("a") as asked:
                    asked.write("x")
            nodes = int(Path("nodes").read_text()) if Path("nodes").exists() else 100
            body = (
                struct.pack(">iiq", 1, 0, nodes << 32)
                if api_key == 3
                else struct.pack(">iihqh", 1, 0, 0, 7, 0)
            )
            self.request.sendall(struct.pack(">i", len(body)) + body)


def main() -> int:
    settings = tomllib.loads(Path(sys.argv[-1].partition("=")[2] or sys.argv[-1]).read_text())
    if Path("die").exists():
        sys.stderr.write("some line\ndata_dir is of another cluster: choose another\n")
        return 70
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: None if Path("ignore-term").exists() else stopping.set())
    host, _, port = settings["http_bind"].rpartition(":")
    servers: list[socketserver.BaseServer] = [http.server.ThreadingHTTPServer((host, int(port)), Http)]
    for listener in settings.get("listeners", []):
        host, _, port = listener["bind"].rpartition(":")
        socketserver.ThreadingTCPServer.allow_reuse_address = True
        servers.append(socketserver.ThreadingTCPServer((host, int(port)), Kafka))
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write("started\n")
    while not stopping.wait(0.05):
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
