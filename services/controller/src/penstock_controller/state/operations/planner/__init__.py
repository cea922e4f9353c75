"""Where every replica is to be, decided from nodes and partitions alone. Pure.

`bytes_goal`  swaps that level how many bytes nodes hold
`cycles`      what was moved for nothing is taken back: the fewest replicas that have to be made
`domains`     failure domains: zones, hosts, and how well a set of nodes is spread over them
`holdings`    which partitions nodes hold, by topic and by where their replicas are
`leaders`     preferred leaders within one of each other, by order alone
`moves`       the whole plan: repair, evenness, leaders, bytes
`paths`       shortest ways from a node that has too much to one that has too little
`repair`      replicas that have to go, that are lacking, or that share a domain
`replicas`    replica counts within one of each other, with the fewest bytes moved
`shape`       nodes and partitions as the planner sees them, and what each node carries
"""
