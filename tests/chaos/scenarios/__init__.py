"""All scenarios, by the kind of harm. Importing this package registers them, in this order."""

# isort: off
from chaos.scenarios import processes
from chaos.scenarios import networks
from chaos.scenarios import disks
from chaos.scenarios import clients
from chaos.scenarios import operations
from chaos.scenarios import transactions

__all__ = ["clients", "disks", "networks", "operations", "processes", "transactions"]
