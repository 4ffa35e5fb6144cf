"""Stores that the engine alone writes, fast enough for gigabytes: every record of one size, with a tag, a key and a
unique key of its own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from rucola.message import MessageInner, properties
from rucola.message.hashing import tags_code
from rucola.message.host import encode_host
from rucola.message.ids import unique_id
from rucola.message.record import encode
from rucola.store.config import PutMessageStatus, StoreConfig
from rucola.store.message_store import MessageStore

HOST = encode_host("127.0.0.1:10911")
BEGIN_MS = 1_700_000_000_000
QUEUES = 4
_BATCH_COUNT = 64
_A_MILLISECOND = 100
_WARM_EVERY = 1 << 14


def write(path: Path, topic: str, size: int, count: int, first: int = 0) -> None:
    """Append to a store the messages from number `first` up to `count`, each a record of `size` bytes.

    All are of one topic; a hundred are stored in every millisecond.
    """
    config = StoreConfig(path, HOST, message_index_enable=False)
    with MessageStore(config) as store:
        made = _messages(topic, size, first, count)
        for number in range(first, count, _BATCH_COUNT):
            results = store.put_batch(list(islice(made, _BATCH_COUNT)), BEGIN_MS + number // _A_MILLISECOND)
            if results[-1].status is not PutMessageStatus.PUT_OK:
                raise RuntimeError(f"a put was answered {results[-1].status}")
            store.reput()
            if number % _WARM_EVERY < _BATCH_COUNT:
                store.warm()


def _messages(topic: str, size: int, first: int, count: int) -> Iterator[MessageInner]:
    """Yield messages that make records of so many bytes; those of a batch are of one queue."""
    pool = random.Random(2013).randbytes(2 * size)
    code = tags_code("TagA")
    body_size = None
    for number in range(first, count):
        key, unique_key = f"order-{number:09d}", unique_id()
        joined = properties.join({properties.KEYS: key, properties.UNIQ_KEY: unique_key, properties.TAGS: "TagA"})
        queue_id = number // _BATCH_COUNT % QUEUES
        made = MessageInner(topic, queue_id, b"", joined, 0, 0, BEGIN_MS, HOST, 0, 0, code, unique_key, key)
        if body_size is None:
            body_size = size - len(encode(made, 0, 0, 0, HOST))
        begin = number * 7 % size
        made.body = pool[begin : begin + body_size]
        yield made
