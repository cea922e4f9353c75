"""Requests on their way to partition leaders and back, for Kafka connections and native calls alike.

`groups`       Requests for group coordinators
`node_stream`  One `Forward` stream
`queries`      ListOffsets, OffsetForLeaderEpoch and others
`requests`     one client request that is relayed
`session`      relaying requests to partition leaders

"""
