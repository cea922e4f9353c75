"""What the sender of one relayed request may do: asked once for each topic and group that it names.

What is denied is answered here and goes to no node. The node asks again for all that it serves, maybe by
other metadata: the stricter of the two answers counts.
"""

from __future__ import annotations

from penstock_frontend.authorizer import CLUSTER_NAME, Authorizer, Identity, Operation, ResourceType


class RequestRights:
    """One request's."""

    __slots__ = ("_answers", "_authorizer", "_who")

    def __init__(self, authorizer: Authorizer, who: Identity) -> None:
        self._authorizer = authorizer
        self._who = who
        self._answers: dict[tuple[Operation, ResourceType, str], bool] = {}

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether the client may; a denial is told once."""
        key = (operation, kind, name)
        known = self._answers.get(key)
        if known is None:
            known = self._answers[key] = self._authorizer.authorize(self._who, operation, kind, name)
        return known

    def may_see_cluster(self, operation: Operation) -> bool:
        """Whether it may do that with the cluster, where it may be allowed another way: nobody is told."""
        return self._authorizer.allows(self._who, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def may_cluster(self, operation: Operation) -> bool:
        """Whether it may do that with the cluster."""
        return self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME)
