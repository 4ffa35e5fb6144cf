"""By this module Spark finds the data source `rocketmq` without being told.

When a session first looks for a Python data source, it imports every top-level module whose name begins with
`pyspark_` and takes its `DefaultSource`. Everything else is in `rucola.spark`.
"""

from rucola.spark.source.data_source import RocketMQSource as DefaultSource

__all__ = ["DefaultSource"]
