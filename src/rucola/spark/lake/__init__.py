"""The lake: archived messages as Parquet, with an index of their keys."""
