"""The cluster's metadata as every role holds it: an immutable image and its deltas."""

from penstock_core.metadata.image import (
    GatewayImage,
    MetadataImage,
    NodeImage,
    PartitionImage,
    TopicImage,
)

__all__ = ["GatewayImage", "MetadataImage", "NodeImage", "PartitionImage", "TopicImage"]
