"""Jobs of the pipeline, one module each: a pure function over DataFrames or Arrow batches, and `run`, its driver.

    archive      new messages of stores or live brokers into a lake
    search       messages of a lake
    audit        statistics of stores and lakes: report and charts (HTML)
    replay       messages to live brokers again: replay_sender (sending), replay_ledger (acknowledgements)
    rebuild      ConsumeQueues and index of a store

Every job runs with Spark, or in this process if there is little to read.
"""
