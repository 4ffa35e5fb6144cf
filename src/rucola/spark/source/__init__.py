"""The Spark data source `rocketmq`: batch reads, streams and writes."""
