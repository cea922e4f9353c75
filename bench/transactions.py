"""Transactions of Penstock beside those of Apache Kafka: rows of the runner of `make bench`, and their goals.

    make bench-transactions                                  every row, five pairs: hours
    make bench-transactions BENCH=--quick                    the rows that say most, ten minutes
    make bench-transactions ONLY=transact ROUNDS=5           rows of which the name matches
    make bench-transactions BENCH=--list                     the rows and their goals
    make bench-transactions BENCH="--systems penstock"       without Kafka; some rows need Java all the same

Clients are librdkafka driven from C, which speaks the old protocol, and Java's, which speaks the new one, each
compiled once. Samples are in bench/results/ after each run: the same command goes on where it was interrupted.
"""

from __future__ import annotations

import sys

from bench.runner.__main__ import main
from bench.runner.suites import TRANSACTIONS

if __name__ == "__main__":
    sys.exit(main(suite=TRANSACTIONS, text=__doc__))
