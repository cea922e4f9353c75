"""How a cluster is, decided from its image and from what its processes told: nothing is changed by it. Pure.

`capacity`    room, growth and load of storage nodes
`check`       all that is not as it should be
`evenness`    whether nodes hold and lead equally much
`findings`    troubles of many partitions in few words
`history`     what nodes told over the last hour
`nodes`       what is amiss with storage nodes and their disks
`partitions`  what is amiss with partitions
`processes`   what is amiss with controllers, builds and operations
`spread`      what of a partition outlives the loss of one node, host or rack
"""
