"""The native client API (proto/penstock/v1/gateway.proto), for Spark and Penstock's own clients.

`admin`           the gRPC service `penstock.v1.Admin`: operators' calls go on to the active controller
`authenticate`    signing in, and the token that comes of it
`describe`        answers of `Describe`, from a metadata image
`epoch_ends`      where leader epochs end
`export`          the gateway's image as the file of a backup
`explain`         what is now and how it came to that, from the memory of all controllers
`fetch_range`     FetchRange relayed: one client call over as many leaders as it takes
`groups`          offsets of a group, and commits of who is no member
`guard`           who calls, and what each method takes
`offsets`         Kafka requests of the native API's own making, over the same relay as clients' requests
`process`         what a process tells of itself, for a bundle
`produce`         One native Produce stream
`query_sessions`  sessions for questions of native clients
`size_ranges`     bytes of ranges, asked of their leaders
`strays`          what a storage node has set aside: asked of that node
`service`         The gRPC service `penstock.v1.Gateway`
`topics`          a topic made for a native client
`units`           exactly-once units, asked of the sinks' coordinators
"""
