"""Transactions: the coordinator of the partitions of `__transaction_state` led here.

All but `host` and `link` decides, and consists of plain synchronous objects: clock, ids, log and sends are passed in.

`admission`  Which batches of transactions, and which markers, the leader of a partition takes.
`due`      Markers of decisions that are not written yet.
`effects`  What the coordinator wants done elsewhere: markers to write, and markers to forget.
`host`     The shell around shards: it makes them, loads them, ticks them, and appends what they write.
`ids`      The transactional ids of a shard, by name, and how many are in which state.
`leading`  The leaders' side on this node: admissions of the partitions led here, and their markers.
`link`     Transactions between nodes, seen from one: what goes where, and the answers.
`outbox`   Markers on their way to the leaders of partitions.
`questions`  Requests on their way to an answer, and those that are held.
`records`  The records of `__transaction_state`, byte for byte as Kafka's coordinator writes them.
`shard`    One partition of `__transaction_state`: what is asked of it is answered, held, or begins a transition.
`state`    One transactional id: its states, and the answer to each request in each of them.
`transitions`  The transitions of a shard: written, counted, carried out, timed, read again.
`unit_records`  What `__transaction_state` has of units: a sink's entry, and the mark of a stage.
`units`    Units of sinks: what a sink has decided last, its stages, and decisions under way.
`verifier`  What a leader asks the coordinator before it takes a transaction's first batch.
`writes`   What a shard has of its log, and what it has appended there.

Imports go one way: host > shard > transitions > writes > units > ids > questions > state > records > unit_records and
effects; transitions > due > ids; link > leading > admission > verifier; link > shard; outbox and verifier > effects.
"""
