"""The Java clients of 3.9: the same driver, compiled with their jar."""

from __future__ import annotations

from conformance.java.driver import JavaClient
from support.java import JavaDriver, missing_java, shared_older_driver


class OlderJavaClient(JavaClient):
    name = "java-3.9"

    @classmethod
    def _shared(cls) -> JavaDriver:
        return shared_older_driver()

    @classmethod
    def _new(cls) -> JavaDriver:
        return JavaDriver(older=True)


missing = missing_java

CLIENT = OlderJavaClient
