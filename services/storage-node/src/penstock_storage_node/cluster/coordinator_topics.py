"""Has the topic of a coordinator made that is needed before any client has looked for one."""

from __future__ import annotations

from typing import Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.security.principal import ANONYMOUS
from penstock_proto.v1 import controller_pb2 as pb
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.lifecycle import Lifecycle

_CREATE_TIMEOUT_MS: Final = 5_000


class CoordinatorTopics:
    """Asks the controllers, once at a time for each topic; whoever needs it asks again later."""

    def __init__(self, controllers: ControllerClient, lifecycle: Lifecycle) -> None:
        self._controllers = controllers
        self._lifecycle = lifecycle
        self._making: set[str] = set()

    def make(self, name: str) -> None:
        """Have it made, with the settings that the controllers give such a topic."""
        if name not in self._making:
            self._making.add(name)
            self._lifecycle.create_task(self._create(name), f"create {name}")

    async def _create(self, name: str) -> None:
        topic = pb.NewTopic(name=name, partition_count=-1, replication_factor=-1)
        call = pb.CreateTopicsRequest(topics=[topic], principal=str(ANONYMOUS))
        try:
            response = await self._controllers.call("CreateTopics", call, _CREATE_TIMEOUT_MS)
            error = response.error if response.error.code else response.topics[0].error
            if error.code and error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise PenstockError(ErrorCode(error.code), error.message)
        except PenstockError as e:
            self._lifecycle.log.warning("topic of a coordinator cannot be made", topic=name, reason=e.message)
        finally:
            self._making.discard(name)
