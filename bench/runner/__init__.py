"""One runner for the figures: Apache Kafka and Penstock in turn, one C client, pairs, intervals, documents, pictures.

Parts that decide, without a clock, a process or a file: `rows` (what is measured, and the goals), `plan` (what runs
beside what, in which order), `figures` (medians, ratios, intervals), `noise` (when a run is void), `documents`
(what is kept), `tables` (what is printed), `charts` (what is drawn). Parts that do: `machine` (what the system
tells), `driver` (the client), `systems` (Kafka and Penstock), `measures` (one kind of row each), `connections`
(many of them, idle), `elsewhere` (benchmarks that are modules of their own), `session` (a visit to a system),
`pictures` (matplotlib), `store` (documents on disk) and `__main__`.
"""
