"""JSON bodies as columns: decoded by a schema, and written to the table of their topic; CPU time of one core."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from figures import Aim, Figure, median
from floors import Options
from rucola.spark.archive import Archive, ArchiveProgress
from rucola.spark.bodies import infer
from rucola.spark.bodies.json_bodies import JsonBodies
from rucola.spark.bodies.json_schemas import struct_type
from rucola.spark.source.columns import SCHEMA

TOPIC = "BenchOrders"
BODIES = 300_000
MOST_MS_PER_MB = 10
"""100 MB/s."""


def measure(options: Options) -> list[Figure]:
    """Orders of 330 bytes with a list, an object and a time."""
    count = options.count(BODIES)
    bodies = [_order(number) for number in range(count)]
    kind = struct_type(infer(bodies[:1000]).schema)
    array = pa.array(bodies, pa.binary())
    size_mb = sum(map(len, bodies)) / 1e6
    decoder = JsonBodies(kind)

    def decode() -> None:
        # In batches of the size that a run decodes together.
        for begin in range(0, count, 100_000):
            if decoder.decode(array.slice(begin, 100_000), None).errors:
                raise RuntimeError("a body was not decoded")

    data = b"\n".join(bodies)

    def read() -> None:
        parsing = pj.ParseOptions(explicit_schema=pa.schema([*kind]), unexpected_field_behavior="ignore")
        pj.read_json(pa.BufferReader(data), pj.ReadOptions(use_threads=False, block_size=len(data) + 1), parsing)

    decode()
    turns = [(_cpu_s(read), _cpu_s(decode)) for _ in range(options.rounds)]
    decode_s = median(lambda turn: turn[1], turns)
    floor_s = median(lambda turn: turn[0], turns)
    derive_s = _derive_s(bodies, decoder)
    return [
        _figure("decode_json", decode_s, floor_s, size_mb, (Aim("value", MOST_MS_PER_MB),)),
        _figure("derive_json", derive_s, floor_s, size_mb, ()),
    ]


def _figure(name: str, cpu_s: float, floor_s: float, size_mb: float, aims: tuple[Aim, ...]) -> Figure:
    return Figure(
        name,
        cpu_s / size_mb * 1000,
        "ms CPU/MB",
        floor=floor_s / size_mb * 1000,
        floor_is="pyarrow reading the same objects",
        aims=aims,
        more={"MB/s of CPU": size_mb / cpu_s},
    )


def _derive_s(bodies: list[bytes], decoder: JsonBodies) -> float:
    """Return the CPU time for reading messages from a lake, decoding them and committing them to a table."""
    count = len(bodies)
    numbers = np.arange(count)
    columns = {name: pa.nulls(count, SCHEMA.field(name).type) for name in SCHEMA.names}
    columns |= {
        "topic": pa.array([TOPIC] * count),
        "body": pa.array(bodies, pa.binary()),
        "brokerName": pa.array(["a"] * count),
        "queueId": pa.array(numbers % 4, pa.int32()),
        "queueOffset": pa.array(numbers // 4),
        "commitLogOffset": pa.array(numbers),
        "msgId": pa.array([f"U{number}" for number in range(count)]),
        "properties": pa.array(
            [[("UNIQ_KEY", f"U{number}")] for number in range(count)], SCHEMA.field("properties").type
        ),
        "storeSize": pa.array(np.full(count, 400, np.int32)),
    }
    with TemporaryDirectory() as folder:
        archive = Archive(Path(folder) / "lake")
        with archive.open() as target:
            target.append(
                pa.RecordBatch.from_arrays([*columns.values()], schema=SCHEMA).slice(begin, 10_000)
                for begin in range(0, count, 10_000)
            )
            target.commit({"a": ArchiveProgress(count)})
        begin_s = time.process_time()
        [result] = archive.derive({TOPIC: decoder})
        if (result.rows, result.errors) != (count, 0):
            raise RuntimeError(f"{result.rows} of {count} bodies were decoded, {result.errors} with an error")
        return time.process_time() - begin_s


def _order(number: int) -> bytes:
    order = {
        "orderId": number,
        "customer": f"c-{number % 1000}",
        "amount": number * 0.37,
        "paid": number % 2 == 0,
        "items": [{"sku": f"s{line}", "quantity": line} for line in range(3)],
        "address": {"street": f"Main street {number}", "city": "Berlin"},
        "createdAt": "2026-01-01T10:00:00Z",
        "note": "x" * 60,
    }
    return json.dumps(order).encode()


def _cpu_s(act: Callable[[], None]) -> float:
    begin_s = time.process_time()
    act()
    return time.process_time() - begin_s
