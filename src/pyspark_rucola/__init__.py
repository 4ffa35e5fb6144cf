"""Entry point by which Spark discovers the data source `rocketmq`.

When a session first looks for a Python data source, it imports every top-level module whose name begins with `pyspark_`
and registers its `DefaultSource`. The implementation is in `rucola.spark`, whose `register` does the same for sessions
whose Python processes run another interpreter.
"""

from rucola.spark.source.data_source import RocketMQSource as DefaultSource

__all__ = ["DefaultSource"]
