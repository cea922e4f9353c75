"""The transaction coordinator: what decides, without a loop, a clock or a disk.

`records`   what is written to `__transaction_state`, in Kafka's form
`shard`     one partition of it: requests that wait, one change of an id after the other, timers, markers that are due
`state`     what one transactional id may do next
"""
