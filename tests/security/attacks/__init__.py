"""One attack per module: `TEXT` says what it is, `run(target)` does it.

Each is what anybody can do who reaches the port, as far as `target.entry` brings him: plaintext, TLS, a user without
rights, or a client's certificate. `NEEDS` names what there must be to be attacked (`security.target`), where it is not
in every cluster; `BY` as whom it is made, where not as everybody (of what needs something: as a stranger).
`run` returns an `Outcome`; what the
attack cost (lag of event loops, memory, lost nodes, honest clients' latency) is measured around it by
`security.measure`. `target.small` asks for a short form, for the tests: bounds on the outcome, none on time.
A new attack is a new module here.
"""
