"""RecordBatch v2 to Arrow, with no Python per record.

`batches` walks batch headers, checks CRCs and decompresses; `records` finds where the
fields of every record lie, with numpy; `columns` turns those positions into Arrow
arrays; `decoder` puts the three together and cuts the result into batches of the size
that Spark moves best.
"""

from pyspark_penstock.decode.decoder import Decoder

__all__ = ["Decoder"]
