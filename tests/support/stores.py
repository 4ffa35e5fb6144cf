"""Messages, settings and copies for tests of the store: files so small that a few messages roll them."""

from __future__ import annotations

import select
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from rucola.broker.config import BrokerConfig
from rucola.broker.limits import Limits
from rucola.broker.tables.topics import TopicConfigTable
from rucola.message import MessageExt, MessageInner, MessageInnerBatch, properties
from rucola.message.hashing import tags_code
from rucola.message.host import encode_host
from rucola.message.record import decode
from rucola.store.config import StoreConfig
from rucola.store.directory_reader import StoreReader
from rucola.store.kernel_flush import KernelFlush
from rucola.store.message_store import MessageStore
from rucola.store.retention import DiskUsage
from rucola.store.tools.check import check

HOST = encode_host("127.0.0.1:10911")
RECOVERY_VARIANTS = [
    "clean-plus-abort",
    "empty-last-commitlog",
    "first-file-body-flip",
    "mid-body-flip",
    "no-abort",
    "no-consumequeue",
    "no-index",
    "only-commitlog",
    "tail-bad-magic",
    "tail-bad-size",
    "tail-huge-size",
    "tail-zeroed",
]
"""The damaged stores of the golden recoveries, by name."""

GOLDEN_DELAYS = "1s " * 17 + "2s"

OpenStore = Callable[..., MessageStore]


def flush_in_kernel(store: MessageStore, kernel: KernelFlush) -> bool:
    """Flush as a broker with SYNC_FLUSH does, and tell whether that took no thread."""
    if not store.flusher.begin(kernel):
        store.flush()
        return False
    select.select([kernel.descriptor], [], [])
    store.flusher.end(kernel.result())
    return True


def inner(
    topic: str = "T",
    queue_id: int = 0,
    body: bytes = b"body",
    tags: str | None = None,
    keys: str | None = None,
    unique_key: str | None = None,
    **more: Any,
) -> MessageInner:
    """A message as a broker would put it."""
    names = {properties.TAGS: tags, properties.KEYS: keys, properties.UNIQ_KEY: unique_key}
    joined = properties.join({name: value for name, value in names.items() if value})
    message = MessageInner(
        topic=topic,
        queue_id=queue_id,
        body=body,
        properties=joined,
        flag=0,
        sys_flag=0,
        born_timestamp=1,
        born_host=HOST,
        tags_code=tags_code(tags),
        keys=keys,
        unique_key=unique_key,
    )
    return msgspec.structs.replace(message, **more)


def batch(*messages: MessageInner) -> MessageInnerBatch:
    """Messages of one client as a broker would put them together."""
    assert len({message.born_host for message in messages}) == 1
    return MessageInnerBatch(
        topics=[message.topic for message in messages],
        queue_ids=[message.queue_id for message in messages],
        flags=[message.flag for message in messages],
        bodies=[bytes(message.body) for message in messages],
        properties=[message.properties for message in messages],
        sys_flags=[message.sys_flag for message in messages],
        born_timestamps=[message.born_timestamp for message in messages],
        reconsume_times=[message.reconsume_times for message in messages],
        born_host=messages[0].born_host,
        tags_codes=[message.tags_code for message in messages],
        unique_keys=[message.unique_key for message in messages],
        keys=[message.keys for message in messages],
    )


def config(path: Path, **settings: Any) -> StoreConfig:
    """Settings with files so small that a few messages roll them."""
    small = {
        "mapped_file_size_commit_log": 4096,
        "mapped_file_size_consume_queue": 200,
        "max_hash_slot_num": 10,
        "max_index_num": 40,
    }
    return StoreConfig(path, HOST, **{**small, **settings})


def golden_config(path: Path, name: str) -> StoreConfig:
    """The settings with which the golden stores were made."""
    if name == "g1-clean":
        sizes = {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 1000, "max_index_num": 4000}
    else:
        sizes = {"mapped_file_size_commit_log": 1 << 16, "max_hash_slot_num": 100, "max_index_num": 400}
    queue_file = next(iter(path.glob("consumequeue/*/*/*")), None)
    size = queue_file.stat().st_size if queue_file is not None else 20_000
    return config(path, mapped_file_size_consume_queue=size, message_delay_level=GOLDEN_DELAYS, **sizes)


def topic_table(store: MessageStore) -> TopicConfigTable:
    """The topics of a broker on an open store, which writes no changes."""
    config = BrokerConfig(broker_name="b", bind_address="127.0.0.1")
    table = TopicConfigTable(
        Path(store.config.store_path_root_dir) / "config" / "topics.json",
        config,
        lambda: None,
        Limits(config),
    )
    table.load(0)
    return table


def force_deletion(store: MessageStore) -> None:
    """Delete the oldest log file of an open store, as a full disk does."""
    store.begin_retention_round(0, 12, [DiskUsage(Path(), 86, 100)])
    assert store.expire(0)
    store.delete_expired()


def crashed_copy(store: MessageStore, to: Path) -> MessageStore:
    """What a kill -9 would leave of an open store, in another directory: its files as the kernel has them."""
    shutil.copytree(store.config.store_path_root_dir, to)
    return MessageStore(replace(store.config, store_path_root_dir=to), None)


def log_of(store: Path) -> tuple[int, int, bytes]:
    """Where the log of a store that nobody serves begins and ends, and its bytes."""
    with StoreReader(store) as reader:
        begin, end = reader.min_physical_offset, reader.max_physical_offset
    files = sorted((store / "commitlog").iterdir())
    return begin, end, b"".join(file.read_bytes() for file in files)[: end - begin]


def files_of(*directories: Path) -> list[tuple[str, bytes]]:
    """Every file below the directories: its name and content; index files go by their order, not by their time."""
    found = []
    for directory in directories:
        paths = sorted(path for path in directory.rglob("*") if path.is_file())
        name = "index" if directory.name == "index" else ""
        found += [(name or str(path.relative_to(directory)), path.read_bytes()) for path in paths]
    return found


def derived_files(store: Path) -> list[tuple[str, bytes]]:
    return files_of(store / "consumequeue", store / "index")


@contextmanager
def sound_store(path: Path, now_ms: int = 0, **settings: Any) -> Iterator[MessageStore]:
    """An open store, which is closed at the end and must then pass its check."""
    store = MessageStore(config(path, **settings))
    store.open(now_ms)
    try:
        yield store
    finally:
        store.close()
    assert check(path) == []


def all_messages(store: MessageStore, topic: str = "T", queue_id: int = 0, first: int = 0) -> list[MessageExt]:
    """The messages of a queue from an offset on, in order."""
    found: list[MessageExt] = []
    while records := store.get(topic, queue_id, first + len(found), 32).records:
        found += map(decode, records)
    return found


def all_bodies(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [message.body for message in all_messages(store, topic, queue_id)]
