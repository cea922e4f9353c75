"""A Java producer with its own defaults (idempotent, acks=all), as a `Writer` of `support.clients`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from support.clients import ThreadWriter
from support.java import record, shared_driver

BATCH = 10
ANSWER_TIMEOUT_S = 150.0


class JavaWriter(ThreadWriter):
    """`driver` in its settings: another JVM than the shared one."""

    def run(self) -> None:
        driver = self._config.pop("driver", None) or shared_driver()
        handle = driver.call("producer.open", config={"bootstrap.servers": self._bootstrap, **self._config})
        sent: list[Future[Any]] = []
        for first in itertools.count(step=BATCH):
            if self._stop.wait(BATCH / self._rate_per_s):
                break
            numbers = range(first, first + BATCH)
            rows = [record(self._value(n), b"key-%d" % (n % 8)) for n in numbers]
            future = driver.start("producer.send", handle=handle, topic=self._topic, records=rows)
            future.add_done_callback(lambda f, numbers=numbers: self._done(numbers, f))  # type: ignore[misc]
            sent.append(future)
        for future in sent:
            future.result(timeout=ANSWER_TIMEOUT_S)
        driver.call("producer.close", handle=handle)

    def _done(self, numbers: Sequence[int], future: Future[Any]) -> None:
        error = future.exception()
        if error is not None:
            self.ledger.errors.append(f"{numbers[0]}: {error}")
            return
        for number, told in zip(numbers, future.result(), strict=True):
            if "error" in told:
                self.ledger.errors.append(f"{number}: {told['error']}")
            else:
                self._acked(number, told["partition"], told["offset"])
