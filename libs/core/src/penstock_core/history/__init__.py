"""What happened to the cluster, in words: how a change is written down, and how a story is told of it.

`changes`   what a step changed of a partition, as one line that is written and read back
`document`  what is explained, as a JSON document
`merge`     what several controllers remember, as one history
`narrate`   sentences from events and their causes
`now`       how a partition, a node or an operation is now, and what would make it well
`phrases`   what a cause means for people
"""
