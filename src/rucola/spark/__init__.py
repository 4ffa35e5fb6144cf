"""The log as a Spark table: the data source `rocketmq`, and the jobs of the pipeline.

    schema      the columns, in Spark's words
    options     what a read and a write may be told
    offsets     queue offsets in options
    source      the data source itself, which Spark asks for the following
    tables      tables of Spark's catalog, which keep their options
    reader      a batch: from options to partitions to rows
    streaming   a stream of batches
    sink        rows sent as messages
    delivery    which queue a message goes to, in which request, and how often that is tried
    places      logs and queues with offsets, and the ranges of them that a batch reads
    pushdown    conditions of a query, as far as they spare reading
    planning    which stretches of a store's log a read has to touch
    reading     a stretch of a store's log as record batches
    live        the queues of live brokers, and brokers that are missing
    pulls       ranges of a live broker's queues, packed into partitions, as record batches
    lag         how far a stream is behind
    columns     records as Arrow columns
    arrays      what lies between numpy, Arrow and Python
    selection   which messages a job takes, of a store or a lake
    ledger      what a replay is to send, and what brokers have acknowledged
    resending   what a task of a replay does
    progress    how far work has come that another thread waits for
    failure     errors of workers, as they come home
    report      the page of an audit, from its tables
    charts      charts as SVG
    session     a local Spark session
    daemon      the process that forks its Python workers
    lake        archived messages as Parquet, and how commits are made to it
    snapshot    which files a lake holds, and how far each store is archived
    inventory   the files of a lake as they are, damaged ones included
    restoration the plan of a repair: what a damaged lake can be restored to
    key_index   where in a lake the messages with a key are
    lookup      a few messages out of a lake, without Spark
    jobs/       one file a job: a pure DataFrame function, and what runs it

Spark finds the data source by itself where this package is installed (see `pyspark_rucola`). Nothing is imported
here, so that naming this package costs neither Spark nor Arrow.
"""
