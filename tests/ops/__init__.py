"""All proofs that a cluster can be operated, and a table at the end: `make ops-test`.

`lines`     what has to hold, in plain words, and the tests that show it
`recorder`  pytest's side: which tests run, and a line in a file as each of them ends
`results`   counts by line, and the table
`runs`      the processes: pytest, simulation, planted bugs, chaos
"""
