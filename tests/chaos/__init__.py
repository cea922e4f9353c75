"""Real processes, real faults, and a checker that reads what became of every record: `make chaos`."""
