"""Arrow columns to RecordBatch v2, many records at once; the way back is `decode`.

Parts: `arrow` (offsets and bytes of binary columns), `varints`, `headers` (a column of headers to what stands at
the end of each record), `records` (rows to the records of batches), `batches` (cuts, compression, batch headers),
`murmur2` (Kafka's hash of keys), `placing` (which partition a row goes to).
"""

from pyspark_penstock.encode.batches import CODECS, Sealed, Sequences, encode_batches, split
from pyspark_penstock.encode.headers import header_tails
from pyspark_penstock.encode.murmur2 import murmur2
from pyspark_penstock.encode.placing import Placing
from pyspark_penstock.encode.records import Rows

__all__ = [
    "CODECS",
    "Placing",
    "Rows",
    "Sealed",
    "Sequences",
    "encode_batches",
    "header_tails",
    "murmur2",
    "split",
]
