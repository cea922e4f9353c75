"""The cluster's metadata as every role holds it: an immutable image and its deltas."""

from penstock_core.metadata.image import (
    GatewayImage,
    ImageBuilder,
    MetadataImage,
    NodeImage,
    PartitionImage,
    TopicImage,
)

__all__ = ["GatewayImage", "ImageBuilder", "MetadataImage", "NodeImage", "PartitionImage", "TopicImage"]
