"""Ready jobs: functions of a Spark session that return what they did as one dict, and `penstock spark run` around them.

    from pyspark_penstock.jobs import archive, audit, read_archive

    audit(spark, topic="flights", gateway="127.0.0.1:9094")["findings"]
    archive(spark, topic="flights", to="/data/flights")
    read_archive(spark, "/data/flights").groupBy("partition").count().show()

Every dict has `job, ok, rows, bytes, seconds, rows_per_s, from, to, findings`; what can't be done raises PenstockError,
whose text is one line.

`archive`          a topic as Parquet files by date, each record once, and as a table of Iceberg
`archive_catalog`  the file that names an Iceberg catalog
`archive_compact`  joins an archive's small files
`archive_files`    an archive's directory and its manifests
`archive_iceberg`  an archive's table: a snapshot per micro-batch
`audit`            every offset explained; compares with a copy or an archive
`charts`           charts as inline SVG
`compare`          whether two sets of rows are the same
`frame`            what every job has: offsets fixed beforehand, findings, the result
`pacing`           lets rows through when they are due
`policy`           whether a topic is compacted
`read_archive`     rows of an archive, as its manifests say
`repartition`      a topic's records into another one, with other partitions or keys
`replay`           records once more, at a rate or at a multiple of their time
`report`           what a topic is like, as one HTML file
`report_page`      the page itself
`replay_runs`      a replay that has a name, and goes on after a kill
`slices`           how a replay is cut
`stored`           what stored batches say: each offset's account
`streams`          a streaming query, run to its end
`times`            times and durations as people write them
`windowed`         counts per window of time and field, into another topic
`writing`          what jobs share that write topics
"""

from pyspark_penstock.jobs.archive import archive
from pyspark_penstock.jobs.audit import audit
from pyspark_penstock.jobs.read_archive import read_archive
from pyspark_penstock.jobs.repartition import repartition
from pyspark_penstock.jobs.replay import replay
from pyspark_penstock.jobs.report import report
from pyspark_penstock.jobs.windowed import windowed

__all__ = ["archive", "audit", "read_archive", "repartition", "replay", "report", "windowed"]
