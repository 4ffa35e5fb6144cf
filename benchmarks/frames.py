"""The requests that the benchmarks send, built by the project's own codec.

A message is like a Java producer's: a body of 1 KB, a tag, one key and a unique key.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from rucola.domain.topic import PERM_READ, PERM_WRITE
from rucola.message import Message, properties
from rucola.message.batch import encode_batch
from rucola.message.ids import unique_id
from rucola.protocol import pull
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import Header, RemotingCommand
from rucola.protocol.offset import QueueRequestHeader
from rucola.protocol.pull import PullMessageRequestHeader
from rucola.protocol.query import QueryMessageRequestHeader
from rucola.protocol.send import SendMessageRequestHeaderV2
from rucola.protocol.topic import CreateTopicRequestHeader

BODY_SIZE = 1024
BATCH_COUNT = 32
QUEUES = 4
FIRST_OPAQUE = 1_000_000
"""Opaques of seven digits, so that all requests of a kind have one size."""
GROUP = "bench"
BORN_MS = 1_700_000_000_000
"""Born time in the past; the broker only copies it."""

_random = random.Random(2013)


def message(topic: str, number: int) -> Message:
    """Return one message, with its number in the key."""
    made = Message(topic, _random.randbytes(BODY_SIZE), tags="TagA", keys=key(number))
    made.unique_key = unique_id()
    made.properties[properties.WAIT] = "true"
    return made


def key(number: int) -> str:
    return f"order-{number:09d}"


def send(topic: str, number: int, queues: int = QUEUES) -> bytes:
    """Return a SEND_MESSAGE_V2, to queue `number` modulo the number of queues."""
    made = message(topic, number)
    header = _send_header(topic, number % queues, properties.join(made.properties).decode(), batch=False)
    return _frame(RequestCode.SEND_MESSAGE_V2, header, made.body)


def send_batch(topic: str, number: int, queue_id: int, *, is_one_key: bool = False) -> bytes:
    """Return a SEND_BATCH_MESSAGE with the messages from `number` on, or with as many that have the key of `number`."""
    messages = [message(topic, number + i) for i in range(BATCH_COUNT)]
    if is_one_key:
        for each in messages:
            each.keys = key(number)
    body = encode_batch(messages)
    header = _send_header(topic, queue_id, "", batch=True)
    return _frame(RequestCode.SEND_BATCH_MESSAGE, header, body)


def create_topic(topic: str, queues: int) -> bytes:
    """Return an UPDATE_AND_CREATE_TOPIC."""
    header = CreateTopicRequestHeader(
        topic=topic, read_queue_nums=queues, write_queue_nums=queues, perm=PERM_READ | PERM_WRITE
    )
    return _frame(RequestCode.UPDATE_AND_CREATE_TOPIC, header)


def pull_messages(topic: str, queue_id: int, queue_offset: int) -> bytes:
    """Return a PULL_MESSAGE with the default batch size of consumers."""
    header = PullMessageRequestHeader(
        consumer_group=GROUP,
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        max_msg_nums=BATCH_COUNT,
        sys_flag=pull.SUBSCRIPTION,
        suspend_timeout_millis=15_000,
        subscription="*",
        expression_type="TAG",
    )
    return _frame(RequestCode.PULL_MESSAGE, header)


def query(topic: str, number: int) -> bytes:
    """Return a QUERY_MESSAGE for the key of one message, without limits of time."""
    header = QueryMessageRequestHeader(
        topic=topic, key=key(number), max_num=32, begin_timestamp=0, end_timestamp=(1 << 63) - 1
    )
    return _frame(RequestCode.QUERY_MESSAGE, header)


def max_offset(topic: str, queue_id: int) -> bytes:
    """Return a GET_MAX_OFFSET, whose response is the number of messages of a queue."""
    return _frame(RequestCode.GET_MAX_OFFSET, QueueRequestHeader(topic=topic, queue_id=queue_id))


def some_numbers(end: int, count: int) -> Iterator[int]:
    """Return numbers below `end` in random order."""
    return (_random.randrange(end) for _ in range(count))


def _frame(code: RequestCode, header: Header, body: bytes = b"") -> bytes:
    command = RemotingCommand.request(code, header, body)
    command.opaque += FIRST_OPAQUE
    return command.encode()


def _send_header(topic: str, queue_id: int, joined: str, *, batch: bool) -> SendMessageRequestHeaderV2:
    return SendMessageRequestHeaderV2(
        producer_group=GROUP,
        topic=topic,
        default_topic_queue_nums=QUEUES,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=BORN_MS,
        flag=0,
        properties=joined,
        unit_mode="false",
        batch="true" if batch else "false",
    )
