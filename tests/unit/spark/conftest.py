"""Makes the helpers of this folder (spark_batches, spark_memory_gateway) importable."""

import sys
from pathlib import Path

import pyspark_penstock  # noqa: F401  # quietens gRPC, which reads its settings at first import

sys.path.insert(0, str(Path(__file__).parent))
