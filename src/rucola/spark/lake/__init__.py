"""The lake: archived messages as Parquet files, with an index of their keys.

    from rucola.spark.lake import read_lake

    read_lake(spark, "/srv/lake").where("topic = 'Orders'").count()

    snapshot        the files of a lake and the archive progress, replaced as a whole by every commit
    writer          the commit protocol: staging, atomic publication, completion after a crash
    reader          Spark DataFrames over the messages
    data_files      layout, footers and entries of the Parquet files
    parquet_files   rows and key entries read and written by Arrow, without Spark
    key_index       hash index from message key to location: entries, and their merge into runs
    lookup          messages found by key, id or condition, without Spark
    staging         messages written to files that a commit can publish
    compaction      small files merged
    repair          a damaged lake restored from its remaining files

Other modules use it through `rucola.spark.archive`.
"""

from rucola.spark.lake.reader import read_lake
from rucola.spark.lake.snapshot import read_snapshot

__all__ = ["read_lake", "read_snapshot"]
