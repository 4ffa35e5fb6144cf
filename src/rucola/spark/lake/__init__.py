"""The lake: archived messages as Parquet files, with an index of their keys.

    from rucola.spark.lake import read_lake

    read_lake(spark, "/srv/lake").where("topic = 'Orders'").count()

    tables          the Iceberg tables of messages and keys, their catalog, commits and expiry
    status          figures of the tables
    rest_catalog    their catalog, served to other engines
    snapshot        the files of a lake and the archive progress, as the tables have them
    writer          what a run does: staging, publication, deletion of what a killed one has left
    runs            traces of killed runs for later ones
    reader          Spark DataFrames over the messages
    arrow_dataset   the messages as an Arrow dataset, for DuckDB and others
    data_files      schema, layout and opening of the Parquet files
    parquet_files   rows and key entries read and written by Arrow, without Spark
    key_index       hash index from message key to location: entries, and their merge into runs
    lookup          messages found by key, id or condition, without Spark
    staging         messages written to files that a commit can publish
    compaction      small files merged
    removal         damaged files taken out
    tiered_reader   the process that reads queues for a broker
    record_columns  rows encoded as records of the log
    topic_tables    tables of single topics, with decoded bodies
    relocation      a lake that was moved to another directory
    adoption        a lake of an earlier version
    local_io        durable files for pyiceberg

Other modules use it through `rucola.spark.archive`.
"""

from rucola.spark.lake.reader import read_lake
from rucola.spark.lake.tables import read_snapshot

__all__ = ["read_lake", "read_snapshot"]
