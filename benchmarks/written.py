"""Stores of gigabytes, written without a broker: records of one size, with a tag, a key and a unique key."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from rucola.message import MessageInnerBatch, properties
from rucola.message.hashing import tags_code
from rucola.message.host import encode_host
from rucola.message.ids import unique_id
from rucola.message.record import encode_many
from rucola.store.config import PutMessageStatus, StoreConfig
from rucola.store.message_store import MessageStore

HOST = encode_host("127.0.0.1:10911")
BEGIN_MS = 1_700_000_000_000
QUEUES = 4
_BATCH_COUNT = 64
_A_MILLISECOND = 100
_WARM_EVERY = 1 << 14


def write(
    path: Path, topic: str, size: int, count: int, first: int = 0, key_of: Callable[[int], str] | None = None
) -> None:
    """Append the messages with the numbers `first` to `count` - 1 to a store, each a record of `size` bytes.

    All are of one topic; store times advance by a millisecond every hundred messages. `key_of` returns the unique key
    of a message.
    """
    config = StoreConfig(path, HOST, message_index_enable=False)
    pool = random.Random(2013).randbytes(2 * size)
    with MessageStore(config) as store:
        body_size = size - len(encode_many(_batch(topic, 0, 1, pool, 0, key_of), [0], 0, 0, HOST)[0])
        for number in range(first, count, _BATCH_COUNT):
            batch = _batch(topic, number, min(number + _BATCH_COUNT, count), pool, body_size, key_of)
            result = store.put_batch(batch, BEGIN_MS + number // _A_MILLISECOND)
            if result.status is not PutMessageStatus.PUT_OK:
                raise RuntimeError(f"a put was answered {result.status}")
            store.reput()
            if number % _WARM_EVERY < _BATCH_COUNT:
                store.warm()


def position_of(number: int) -> tuple[int, int]:
    """Return queue id and queue offset of a message of `write`."""
    batch, within = divmod(number, _BATCH_COUNT)
    return batch % QUEUES, batch // QUEUES * _BATCH_COUNT + within


def _batch(
    topic: str, begin: int, end: int, pool: bytes, body_size: int, key_of: Callable[[int], str] | None
) -> MessageInnerBatch:
    """Yield messages by number; bodies are slices of a pool of twice the record size."""
    keys = [f"order-{number:09d}" for number in range(begin, end)]
    unique_keys = [unique_id() if key_of is None else key_of(number) for number in range(begin, end)]
    places = [number * 7 % (len(pool) // 2) for number in range(begin, end)]
    return MessageInnerBatch(
        topics=[topic] * len(keys),
        queue_ids=[begin // _BATCH_COUNT % QUEUES] * len(keys),
        bodies=[pool[place : place + body_size] for place in places],
        properties=[
            properties.join({properties.KEYS: key, properties.UNIQ_KEY: unique_key, properties.TAGS: "TagA"})
            for key, unique_key in zip(keys, unique_keys, strict=True)
        ],
        flags=[0] * len(keys),
        sys_flags=[0] * len(keys),
        born_timestamps=[BEGIN_MS] * len(keys),
        born_host=HOST,
        reconsume_times=[0] * len(keys),
        tags_codes=[tags_code("TagA")] * len(keys),
        unique_keys=unique_keys,
        keys=keys,
    )
