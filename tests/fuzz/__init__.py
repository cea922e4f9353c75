"""Fuzz tests: every parser of bytes or words that come from outside or from the disk.

`targets` says what a target is and holds the table of all of them; `*_targets` make them. `child` fuzzes
one under atheris (coverage-guided, libFuzzer), `__main__` all of them (`make fuzz`), and `plain` a little of
each with nothing but a seed, for `make test`. `regressions` keeps inputs that once failed.
"""
