"""The transaction coordinator: what decides, without a loop, a clock or a disk.

`records`   what is written to `__transaction_state`, in Kafka's form
`state`     what one transactional id may do next
"""
