"""What brokers deliver on their own account: messages that wait for an hour, and a clock that a test sets forward."""

from __future__ import annotations

from rucola import fastjson
from rucola.broker.broker import Broker, wall_clock_ms
from rucola.broker.delivery.transactions import TRANSACTION_GROUP
from rucola.client import Message, Producer
from rucola.message.record import decode_many
from rucola.message.topics import TRANS_HALF_TOPIC
from rucola.protocol.codes import RequestCode
from support.cluster import Cluster
from support.waiting import until

LEVELS = {"message_delay_level": "1h"}
HOUR_MS = 3_600_000


class Clock:
    """The wall clock, which a test sets forward."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def __call__(self) -> int:
        return wall_clock_ms() + self.ahead_ms


async def send_waiting(running: Cluster, body: bytes, **properties: str) -> None:
    """Send a message to T whose properties delay it."""
    async with Producer("p", running.namesrv) as producer:
        await producer.send(Message("T", body, properties=properties))


async def has_messages(running: Cluster, broker: Broker, *bodies: bytes) -> None:
    """Wait until the first queue of T has these messages, in any order, and no others."""

    async def is_so() -> bool:
        messages = decode_many((await running.peer(broker).pull()).body)
        return sorted(message.body for message in messages) == sorted(bodies)

    await until(is_so)


async def half_offset(running: Cluster, broker: Broker) -> int:
    """How far a broker has come with half messages; -1 if it has not begun."""
    table = fastjson.loads((await running.peer(broker).ask(RequestCode.GET_ALL_CONSUMER_OFFSET)).body)["offsetTable"]
    return int(table.get(f"{TRANS_HALF_TOPIC}@{TRANSACTION_GROUP}", {}).get(0, -1))
