"""What every Penstock process runs on: settings, logs, lifecycle, HTTP, gRPC and Kafka listeners.

`addresses`              reading `host:port`, what counts as loopback, binding, advertising
`authorizer`             who asks, and whether they may
`cluster_admin`          CreateTopics, DeleteTopics and CreatePartitions
`cluster_apis`           Kafka APIs that any process with metadata answers
`cluster_auto_create`    topics that are made because a client asks for them
`cluster_calls`          calls to the active controller on behalf of clients
`cluster_configs`        DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources
`cluster_coordinators`   FindCoordinator: the leader of a group's partition, from metadata
`cluster_describe`       DescribeCluster, DescribeTopicPartitions, and a gateway's DescribeLogDirs
`cluster_quorum`         DescribeQuorum, UpdateFeatures, and client quotas, of which there are none
`cluster_reassignments`  reassignments, ElectLeaders, UnregisterBroker
`controller_client`      calls to whichever controller is active
`failpoints`             arming failpoints from the environment
`grpc_tools`             gRPC as Penstock uses it: servers, channels, probes
`http`                   a small HTTP server: health, readiness, metrics, and what a role adds
`kafka_connection`       one Kafka connection: bytes in, frames out to the handler, responses back in order
`kafka_listener`         a port that speaks Kafka's framing: accepting, caps, time limits
`kafka_metrics`          counters of the Kafka side of a process
`lifecycle`              readiness, tasks, metrics and the end of a role in a process
`logs`                   one line per event on standard error, for people or as JSON
`memory`                 keeping the C allocator's memory small in a process with several threads
`metadata_client`        following the cluster's metadata: one image, always moving forward
`producer_ids`           producer ids for idempotent producers, from blocks that only this process has
`proxy_protocol`         the PROXY protocol header, versions 1 and 2
`roles`                  starting and ending a role: settings, logs, event loop, signals, exit code
`settings`               settings of a role: flags over environment over TOML file over defaults
`suspected_leaders`             leaders that are believed to be dead, a moment before the metadata say so
`version`                the version of this build, from the installed package's own metadata

Roles build on this package; it knows none of them. Decisions that need no event loop
live in `penstock_core`.
"""

import os

# gRPC reads this once, when it is first loaded. Its own lines on standard error would
# stand between ours; what they say comes back as call statuses too.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
