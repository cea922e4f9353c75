"""What every Penstock process runs on: settings, logs, lifecycle, HTTP, gRPC and Kafka listeners.

`addresses`          reading `host:port`, what counts as loopback, binding, advertising
`audit`              the audit log of a process: who signed in, was denied, changed what
`audit_file`         the file that its lines go to, or standard error
`controller_client`  calls to whichever controller is active
`door`               what all doors have in common: security, certificate, who a client is
`door_settings`      settings of the doors beside the Kafka listeners
`failpoints`         arming failpoints from the environment
`grpc_bounds`        what a gRPC port lets others take of it
`grpc_calls`         how many calls are open at a gRPC port, and who has called
`grpc_places`        who has a place at a gRPC port, and who goes when there are too many
`grpc_port`          the way in to a gRPC server: accept, bounds, TLS, then the connection
`grpc_server`        gRPC servers of the roles
`grpc_tools`         channels to other roles, and whether they are there
`handshakes`         whose TLS handshake begins next, and how fast they follow one another
`http`               a small HTTP server: health, readiness, metrics, and what a role adds
`http2`              gRPC's wire form over HTTP/2 on the event loop itself
`http_door`          what an HTTP connection may take before and between its requests
`kafka_names`        what Kafka's broker configurations are called here, for those who bring a
                     server.properties along
`kept_out`           addresses whose new connections the kernel leaves unanswered for a while
`lifecycle`          readiness, tasks, metrics and the end of a role in a process
`listener_settings`  settings of one Kafka listener
`log_folding`        which log lines are written: one of an event in a second, the rest counted
`logs`               one line per event on standard error, for people or as JSON
`loop_metrics`       how busy and how late the event loop is, and how much it logs
`memory`             keeping the C allocator's memory small in a process with several threads
`metadata_client`    following the cluster's metadata: one image, always moving forward
`oauth_settings`     the `[oauth]` table: whose tokens count, and where their keys are
`plain_histogram`    a histogram for the hot path
`ports`              what a role takes from the world around it: clocks, chance, the network
`recent_max`         the largest of what was seen lately
`roles`              starting and ending a role: settings, logs, event loop, signals, exit code
`self_description`   what a process tells of itself: settings, log, stacks, directory, metrics
`security`           certificates of our own processes, and new ones in the place of old
`settings`           settings of a role: flags over environment over TOML file over defaults
`syn_filter`         lets the kernel leave first packets of some addresses unanswered
`tracing`            traces of a part of the requests, by OpenTelemetry
`turns`              long work in short turns of the event loop
`version`            the version of this build, from the installed package's own metadata
`waiting_addresses`  which addresses have to wait before they dial again, and how long

Roles build on this package; it knows none of them. Decisions that need no event loop
live in `penstock_core`.
"""

from penstock_core.process import grpc_environment

grpc_environment.prepare()
