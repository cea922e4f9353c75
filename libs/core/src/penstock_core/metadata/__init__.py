"""The cluster's metadata as every role holds it: an immutable image and its deltas.

`backup`      the file of an export: all metadata of one version
`image`       all of it, and `apply`, the only way to a newer image
`levels`      which records a cluster may write, by its feature level
`operations`  operations, what they move, and what operators said of nodes: a part of the image
`restore`     the metadata with which a cluster begins anew, of a backup or of nothing
`security`    users, rights, quotas and secrets: a part of the image
"""

from penstock_core.metadata.image import (
    GatewayImage,
    ImageBuilder,
    MetadataImage,
    NodeImage,
    PartitionImage,
    TopicImage,
)

__all__ = ["GatewayImage", "ImageBuilder", "MetadataImage", "NodeImage", "PartitionImage", "TopicImage"]
