"""What Spark's web pages and its REST interface say: every page that is found from an address by its links."""

from __future__ import annotations

import html
import json
import re
import threading
import urllib.error
import urllib.parse
import urllib.request
from typing import Final

URL_CHARACTERS: Final = "%/:=&?~#+!$,;'@()*[]"
"""Of links, which have blanks in them here and there."""
PAGES_MAX: Final = 300
READ_TIMEOUT_S: Final = 60.0
_LINK: Final = re.compile(rb"""(?:href|src)=["']([^"'#]+)""")
_NOT_ASKED: Final = ("/static/", "/kill", "heapHistogram", ".sort=", ".desc=", "pageSize=")
"""What changes something, is costly, or is a page once more."""
_FIRST: Final = ("", "jobs/", "stages/", "storage/", "environment/", "executors/", "SQL/", "StreamingQuery/")
_TOLD: Final = (
    "environment",
    "allexecutors",
    "jobs",
    "stages?details=true",
    "sql?details=true&planDescription=true",
)
"""Of the REST interface, by application."""


def pages(address: str) -> dict[str, bytes]:
    """Texts by URL, of one web server; what is gone by the time that it is asked for is left out."""
    waiting = [f"{address}/{page}" for page in _FIRST]
    for name in _names(f"{address}/api/v1/applications"):
        told = f"{address}/api/v1/applications/{name}"
        waiting += [f"{told}/{each}" for each in _TOLD]
        waiting += [f"{address}/SQL/execution/?id={each}" for each in _names(f"{told}/sql?length=1000")]
    found: dict[str, bytes] = {}
    seen = set(waiting)
    while waiting and len(found) < PAGES_MAX:
        url = waiting.pop(0)
        text = _get(url)
        if text is None:
            continue
        found[url] = text
        for link in _LINK.findall(text):
            other = urllib.parse.urljoin(url, html.unescape(link.decode(errors="replace")))
            if (
                other.startswith(f"{address}/")
                and other not in seen
                and not any(p in other for p in _NOT_ASKED)
            ):
                seen.add(other)
                waiting.append(other)
    return found


def _names(url: str) -> list[str]:
    """Ids of a list of the REST interface; none where there is none, as at a master or a worker."""
    try:
        return [str(item["id"]) for item in json.loads(_get(url) or b"[]")]
    except ValueError:
        return []


def _get(url: str) -> bytes | None:
    try:
        with urllib.request.urlopen(
            urllib.parse.quote(url, safe=URL_CHARACTERS), timeout=READ_TIMEOUT_S
        ) as answer:
            text: bytes = answer.read()
    except (OSError, urllib.error.URLError, ValueError):
        return None
    return text


class WatchedPages:
    """The pages of an application that comes and goes, looked at again and again until the end of the block."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.urls: set[str] = set()
        self.texts: set[bytes] = set()

    def __enter__(self) -> WatchedPages:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            found = pages(self._address)
            self.urls |= found.keys()
            self.texts |= set(found.values())
