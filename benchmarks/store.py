"""The engine alone: recovery scan, append, a cold key lookup, opening thousands of queues.

Files are in the page cache unless a name says cold. Cold pages are dropped from the page cache, which the owner of a
file may do; dropping directories and inodes needs a superuser, and so does that figure.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
from isal.isal_zlib import crc32

from figures import Aim, Figure
from floors import Options
from rucola.message import MessageInner, MessageInnerBatch, properties
from rucola.message.hashing import index_hash
from rucola.message.host import encode_host
from rucola.store.config import PutMessageStatus, StoreConfig
from rucola.store.index import ENTRY_SIZE, HEADER_SIZE, SLOT_SIZE, Index, index_key
from rucola.store.mapped_file import MappedFileQueue
from rucola.store.message_store import MessageStore
from rucola.store.scan import RecordRun, scan

BODY_SIZE = 1024
BATCH_COUNT = 32
LOG_SIZE = 1 << 30
QUEUE_COUNT = 10_000
QUEUES_A_TOPIC = 8
LOOKUPS = 200
HOST = encode_host("127.0.0.1:10911")
NOW_MS = 1_700_000_000_000

_random = Random(2013)


def measure(options: Options) -> list[Figure]:
    """Measure each figure with a store of its own."""
    figures = []
    for one in (_append_and_scan, _lookup, _open_queues):
        with TemporaryDirectory(prefix="rucola-bench-") as folder:
            figures += one(Path(folder), options)
    return figures


def _append_and_scan(folder: Path, options: Options) -> list[Figure]:
    """Fill a log file with batches, timing the puts, then scan it as recovery does."""
    batch = _batch("Bench", 0)
    config = StoreConfig(folder, HOST, mapped_file_size_commit_log=LOG_SIZE, message_index_enable=False)
    puts: list[float] = []
    floors: list[float] = []
    with MessageStore(config) as store:
        block = bytes(store.put_batch(batch, NOW_MS).size)
        count = options.count(LOG_SIZE - (64 << 20)) // len(block)
        copy = bytearray(4 << 20)
        for _ in range(count):
            if store.max_physical_offset >> 22 != (store.max_physical_offset - len(block)) >> 22:
                store.warm()
            begin = time.perf_counter_ns()
            result = store.put_batch(batch, NOW_MS)
            end = time.perf_counter_ns()
            position = result.physical_offsets[0] % (len(copy) - len(block))
            copy[position : position + len(block)] = block
            floors.append((time.perf_counter_ns() - end) / BATCH_COUNT / 1e3)
            puts.append((end - begin) / BATCH_COUNT / 1e3)
            if result.status is not PutMessageStatus.PUT_OK:
                raise RuntimeError(f"a put was answered {result.status}")
            store.reput()
        size = store.max_physical_offset
        stored = (count + 1) * BATCH_COUNT
    append = Figure(
        "append_1KB_in_batches",
        statistics.median(puts),
        "µs/record",
        floor=statistics.median(floors),
        floor_is="copying as many bytes in memory",
        aims=[Aim("value", 2)],
        more={"mean_µs": statistics.mean(puts), "records": stored, "slowest_batch_ms": max(puts) * BATCH_COUNT / 1e3},
    )
    files = MappedFileQueue.open(config.commit_log_directory)

    def read() -> None:
        found = sum(len(item.positions) for item in scan(files, 0) if isinstance(item, RecordRun))
        if found != stored:
            raise RuntimeError(f"{stored} records were put, and the scan finds {found}")

    def checksum() -> None:
        mapped = files.files[0].map
        for position in range(0, size, 1 << 20):
            crc32(mapped[position : min(position + (1 << 20), size)])

    seconds, floor = _by_turns(read, checksum, options.rounds)
    files.close()
    scale = LOG_SIZE / size
    scanned = Figure(
        "recovery_scan_of_1_GiB",
        statistics.median(seconds) * scale,
        "s",
        floor=statistics.median(floor) * scale,
        floor_is="CRC-32 of the same bytes",
        aims=[Aim("value", 1)],
        more={"least_s": min(seconds) * scale, "records/s": stored / statistics.median(seconds)},
    )
    return [append, scanned]


def _lookup(folder: Path, options: Options) -> list[Figure]:
    """Fill one index file to its last entry, drop its pages and look up keys, each of them cold."""
    config = StoreConfig(folder)
    slots, entries = config.max_hash_slot_num, config.max_index_num
    index = Index.open(folder, slots, entries, writable=True)
    generator = np.random.default_rng(2013)
    known = [f"order-{number:09d}" for number in range(LOOKUPS)]
    hashes = generator.integers(0, 1 << 31, entries - 1, np.int32)
    places = np.linspace(0, entries - 2, LOOKUPS, dtype=np.int64)
    hashes[places] = [index_hash(index_key("Bench", key)) for key in known]
    step = 1 << 16
    for begin in range(0, entries - 1, step):
        block = hashes[begin : begin + step]
        offsets = np.arange(begin, begin + len(block), dtype=np.int64) * 1200
        index.put_many(block, offsets, NOW_MS + offsets // 1_200_000)
    index.flush()
    (path,) = folder.iterdir()
    index.close()

    index = Index.open(folder, slots, entries)
    fd = os.open(path, os.O_RDONLY)
    lookups: list[float] = []
    floors: list[float] = []
    for number in _random.sample(range(LOOKUPS), options.count(LOOKUPS)):
        slot_at = HEADER_SIZE + int(hashes[places[number]]) % slots * SLOT_SIZE
        entry_at = HEADER_SIZE + slots * SLOT_SIZE + (int(places[number]) + 1) * ENTRY_SIZE
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        begin_ns = time.perf_counter_ns()
        os.pread(fd, SLOT_SIZE, slot_at)
        os.pread(fd, ENTRY_SIZE, entry_at)
        floors.append((time.perf_counter_ns() - begin_ns) / 1e6)
        index.close()  # the kernel does not drop mapped pages
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        index = Index.open(folder, slots, entries)
        begin_ns = time.perf_counter_ns()
        found = index.query("Bench", known[number], 64)
        lookups.append((time.perf_counter_ns() - begin_ns) / 1e6)
        if int(places[number]) * 1200 not in found:
            raise RuntimeError(f"{known[number]} is not found")
    os.close(fd)
    index.close()
    return [
        Figure(
            "cold_key_lookup_in_a_full_index",
            statistics.median(lookups),
            "ms",
            floor=statistics.median(floors),
            floor_is="two cold reads of the same file",
            aims=[Aim("value", 1)],
            more={
                "p90_ms": float(np.percentile(lookups, 90)),
                "entries": entries - 1,
                "file_MB": path.stat().st_size / 1e6,
            },
        )
    ]


def _open_queues(folder: Path, options: Options) -> list[Figure]:
    """Open a store of thousands of queues, each with a few messages, after a clean stop and after a crash."""
    count = options.count(QUEUE_COUNT)
    config = StoreConfig(folder, HOST)
    names = [(f"Bench{number // QUEUES_A_TOPIC}", number % QUEUES_A_TOPIC) for number in range(count)]
    with MessageStore(config) as store:
        for number in range(3):
            for topic, queue_id in names:
                store.put(_message(topic, queue_id, b"body", number), NOW_MS + number)
            store.reput()

    def opened() -> float:
        store = MessageStore(config)
        begin = time.perf_counter()
        store.open(NOW_MS)
        seconds = time.perf_counter() - begin
        if set(store.queues().values()) != {(0, 3)}:
            raise RuntimeError("not every queue has its messages")
        store.close()
        return seconds

    paths = [folder / "consumequeue" / topic / str(queue_id) / f"{0:020d}" for topic, queue_id in names]

    def looked_at() -> float:
        begin = time.perf_counter()
        for path in paths:
            os.listdir(path.parent)
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            os.lseek(fd, 0, os.SEEK_HOLE)
            os.pread(fd, 4096, 0)
            os.close(fd)
        return time.perf_counter() - begin

    warm = [(opened(), looked_at()) for _ in range(options.rounds)]
    cold = [(_forgotten(opened), _forgotten(looked_at)) for _ in range(min(options.rounds, 2))] if _can_forget() else []

    def opened_after_a_crash() -> float:
        (folder / "abort").touch()
        return opened()

    crashed = [(opened_after_a_crash(), looked_at()) for _ in range(options.rounds)]
    figures = []
    names_of_runs = ("open_10,000_queues", "open_10,000_queues_cold", "open_10,000_queues_after_a_crash")
    for name, runs in zip(names_of_runs, (warm, cold, crashed), strict=True):
        if runs:
            figures.append(
                Figure(
                    name,
                    statistics.median(run[0] for run in runs) * QUEUE_COUNT / count,
                    "s",
                    floor=statistics.median(run[1] for run in runs) * QUEUE_COUNT / count,
                    floor_is="listing each directory and reading a page of each file, one after the other",
                    aims=[Aim("value", 2)],
                    more={"queues": count, "least_s": min(run[0] for run in runs) * QUEUE_COUNT / count},
                )
            )
    return figures


_FORGET = Path("/proc/sys/vm/drop_caches")


def _can_forget() -> bool:
    try:
        _FORGET.write_text("3")
    except OSError:
        return False
    return True


def _forgotten(measured: Callable[[], float]) -> float:
    """Measure with an empty page cache."""
    os.sync()
    _FORGET.write_text("3")
    return measured()


def _by_turns(measured: Callable[[], None], floor: Callable[[], None], rounds: int) -> tuple[list[float], list[float]]:
    """Return the seconds of both, in alternating rounds after a warm-up."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for call, kept in zip((measured, floor), times, strict=True):
            begin = time.perf_counter()
            call()
            if number:
                kept.append(time.perf_counter() - begin)
    return times


def _batch(topic: str, queue_id: int) -> MessageInnerBatch:
    keys = [f"order-{number:09d}" for number in range(BATCH_COUNT)]
    return MessageInnerBatch(
        topics=[topic] * BATCH_COUNT,
        queue_ids=[queue_id] * BATCH_COUNT,
        bodies=[_random.randbytes(BODY_SIZE) for _ in keys],
        properties=[properties.join({properties.KEYS: key}) for key in keys],
        flags=[0] * BATCH_COUNT,
        sys_flags=[0] * BATCH_COUNT,
        born_timestamps=[NOW_MS] * BATCH_COUNT,
        born_host=HOST,
        reconsume_times=[0] * BATCH_COUNT,
        tags_codes=[0] * BATCH_COUNT,
        unique_keys=[None] * BATCH_COUNT,
        keys=keys,
    )


def _message(topic: str, queue_id: int, body: bytes, number: int) -> MessageInner:
    key = f"order-{number:09d}"
    return MessageInner(
        topic=topic,
        queue_id=queue_id,
        body=body,
        properties=properties.join({properties.KEYS: key}),
        flag=0,
        sys_flag=0,
        born_timestamp=NOW_MS,
        born_host=HOST,
        tags_code=0,
        keys=key,
        unique_key=None,
    )
