"""What every Penstock process runs on: settings, logs, lifecycle, HTTP, gRPC and Kafka listeners.

Roles build on this package; it knows none of them. Decisions that need no event loop
live in `penstock_core`.
"""

import os

# gRPC reads this once, when it is first loaded. Its own lines on standard error would
# stand between ours; what they say comes back as call statuses too.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
