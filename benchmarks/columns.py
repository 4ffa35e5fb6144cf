"""Decoding a CommitLog into Arrow columns: all columns of all rows, beside copying the same bytes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np

from figures import Figure, median
from floors import Options
from rucola.message import MessageInner, properties
from rucola.message.hashing import tags_code
from rucola.message.host import encode_host
from rucola.message.ids import unique_id
from rucola.message.record import encode
from rucola.spark.source import columns, record_layout
from rucola.spark.source.array_conversions import Array

TOPIC = "BenchColumns"
SIZES = {1024: 128 * 1024, 200: 512 * 1024}
"""Record sizes, with the number of records to decode."""

HOST = encode_host("127.0.0.1:10911")
BEGIN_MS = 1_700_000_000_000


def measure(options: Options) -> list[Figure]:
    """Records of two sizes, each with a tag, a key and a unique key."""
    return [_figure(size, options.count(rows), options.rounds) for size, rows in SIZES.items()]


def _figure(size: int, rows: int, rounds: int) -> Figure:
    log, positions, sizes = log_of(size, rows)
    source = np.frombuffer(log, np.uint8)
    copy = np.empty_like(source)

    def copy_all() -> None:
        np.copyto(copy, source)

    def decode_all() -> None:
        decoded = 0
        for cut in record_layout.batches(positions, sizes):
            records, damages = record_layout.locate(log, 0, positions[cut], sizes[cut])
            for batch, found in columns.decode(records, columns.SCHEMA.names, broker_name="bench"):
                damages += found
                decoded += batch.num_rows
        if decoded != rows or damages:
            raise RuntimeError(f"{decoded} of {rows} rows were decoded, with {len(damages)} damages")

    copy_all()
    decode_all()
    turns = [(_seconds(copy_all), _seconds(decode_all)) for _ in range(rounds)]
    decode_s = median(lambda turn: turn[1], turns)
    return Figure(
        f"columns_of_{size}_byte_records",
        len(log) / decode_s / 1e9,
        "GB/s",
        floor=len(log) / median(lambda turn: turn[0], turns) / 1e9,
        floor_is="memcpy of the same bytes",
        more_is_better=True,
        more={"rows/s": rows / decode_s, "rows": rows},
    )


def log_of(size: int, rows: int) -> tuple[bytes, Array, Array]:
    """Return the bytes of a CommitLog of `rows` records of `size` bytes, and the positions and sizes of its records."""
    records: list[bytes] = []
    body = random.Random(2013).randbytes(size)
    position = 0
    for number in range(rows):
        key, unique_key = f"order-{number:09d}", unique_id()
        joined = properties.join({properties.KEYS: key, properties.UNIQ_KEY: unique_key, properties.TAGS: "TagA"})
        inner = MessageInner(
            TOPIC, number % 4, b"", joined, 0, 0, BEGIN_MS, HOST, 0, 0, tags_code("TagA"), unique_key, key
        )
        inner.body = body[: size - len(encode(inner, 0, 0, 0, HOST))]
        records.append(encode(inner, number // 4, position, BEGIN_MS + number // 100, HOST))
        position += size
    return b"".join(records), np.arange(0, rows * size, size), np.full(rows, size)


def _seconds(act: Callable[[], None]) -> float:
    begin_ns = time.perf_counter_ns()
    act()
    return (time.perf_counter_ns() - begin_ns) / 1e9
