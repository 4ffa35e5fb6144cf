"""Reads a lake with DuckDB's extension `iceberg`: `reader.py DIRECTORY URI OUT`.

Writes the messages by both ways as Parquet files, and prints, as JSON, rows by topic, and how changes are refused.
"""

import json
import sys

import duckdb
from duckdb_extensions import import_extension

directory, uri, out = sys.argv[1:]
connection = duckdb.connect()
for name in ("httpfs", "avro", "iceberg"):
    import_extension(name)
    connection.execute(f"LOAD {name}")
connection.execute(f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{uri}', AUTHORIZATION_TYPE 'none')")
for name, table in (("directory", f"iceberg_scan('{directory}')"), ("catalog", "lake.rucola.messages")):
    connection.execute(f"COPY (FROM {table}) TO '{out}/{name}.parquet'")
refused = []
for change in ("CREATE TABLE lake.rucola.other AS SELECT 1 AS number", "DROP TABLE lake.rucola.keys"):
    try:
        connection.execute(change)
    except duckdb.Error as error:
        refused.append("ForbiddenException" in str(error))
topics = connection.execute("SELECT count(*) FROM lake.topics.\"007\" WHERE queueId = 0 AND topic = '007'").fetchall()
print(json.dumps({"topic": topics[0][0], "refused": refused}))
