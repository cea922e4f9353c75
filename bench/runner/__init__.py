"""One runner for the figures: Apache Kafka and Penstock in turn, one C client, pairs, intervals, documents, pictures.

Parts that decide, without a clock, a process or a file: `rows` and `transaction_rows` (what is measured, and the
goals), `suites` (which rows a command measures), `plan` (what runs beside what, in which order), `figures` (medians,
ratios, intervals), `pauses` (how long something stood still), `noise` (when a run is void), `documents` (what is
kept), `tables` (what is printed), `charts` (what is drawn). Parts that do: `machine` (what the system tells),
`driver` and `java` (the clients), `systems` (Kafka and Penstock), `measures` and `transactions` (one kind of row
each), `connections` (many of them, idle), `transactional_ids` (many of them, by raw requests), `page_cache` (memory
as a run finds it), `elsewhere` (benchmarks that are modules of their own), `session` (a visit to a system),
`pictures` (matplotlib), `store` (documents on disk), `readme` (README's table) and `__main__`.
"""
