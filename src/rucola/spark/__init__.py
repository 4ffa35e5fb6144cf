"""The log as a Spark table: the data source `rocketmq`, and the jobs of the pipeline.

    columns     records of a CommitLog as Arrow columns
    options     what a read may be told
    planning    which stretches of which log a read has to touch
    source      the data source itself
    session     a local Spark session
    lake        archived messages as Parquet, and how far each store is archived
    jobs/       one file a job: a pure DataFrame function, and what runs it

Spark finds the data source by itself where this package is installed (see `pyspark_rucola`). Nothing is imported
here, so that naming this package costs neither Spark nor Arrow.
"""
