"""The replay job from a store to a live broker, beside the plain Producer sending the same messages."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import frames
from figures import Figure, median
from floors import Options, in_turns
from load import answer_to
from rucola.client import Message, MessageQueue, Producer
from rucola.spark.jobs import replay
from rucola.spark.resending import MESSAGES_A_REQUEST
from rucola.spark.session import local_session
from rucola.store.reader import StoreReader
from servers import Server, standalone
from stored import check_stored
from written import QUEUES, write

TOPIC = "BenchReplay"
RECORD_SIZE = 1024
STORED = 64 * 1024


def measure(options: Options) -> list[Figure]:
    """Write a store, and send what is in it to a broker, both ways by turns, each time to a topic of its own."""
    count = options.count(STORED)
    session = local_session("rucola-bench")
    try:
        with TemporaryDirectory(prefix="rucola-bench-") as name:
            folder = Path(name)
            write(folder / "store", TOPIC, RECORD_SIZE, count)
            queues = _messages(folder / "store")
            with standalone(folder / "broker") as broker:
                numbers = itertools.count()
                rates: list[float] = []

                def replay_all() -> None:
                    target = f"{TOPIC}Replayed{next(numbers)}"
                    answer_to(broker, frames.create_topic(target, QUEUES))
                    done = replay.run(
                        session,
                        folder / "store",
                        name_server=broker.namesrv,
                        ledger=folder / target,
                        topic=target,
                    )
                    if done.acknowledged != count:
                        raise RuntimeError(f"of {count} messages {done.acknowledged} were acknowledged")
                    check_stored(broker, target, count, QUEUES)
                    rates.append(_rate(folder / target))

                def send_all() -> None:
                    target = f"{TOPIC}Sent{next(numbers)}"
                    answer_to(broker, frames.create_topic(target, QUEUES))
                    asyncio.run(_send(broker, target, queues))
                    check_stored(broker, target, count, QUEUES)

                send_s, replay_s = in_turns([send_all, replay_all], max(2, options.rounds // 2))
    finally:
        session.stop()
    return [
        Figure(
            "replay",
            count / replay_s,
            "messages/s",
            floor=count / send_s,
            floor_is="the plain Producer sending the same messages, in batches of the same size",
            more_is_better=True,
            more={"messages": count, "messages/s_while_sending": median(float, rates)},
        )
    ]


def _rate(ledger: Path) -> float:
    """Messages a second from the first acknowledgement to the last; before that, queues are counted and dealt out."""
    acks = [json.loads(line) for path in ledger.glob("*.acks") for line in path.read_text().splitlines()]
    times = [ack["time"] for ack in acks]
    return sum(ack["count"] for ack in acks) / (max(times) - min(times)) * 1000


def _messages(store: Path) -> dict[int, list[tuple[bytes, dict[str, str]]]]:
    """Body and properties of every message in a store, by queue."""
    found: dict[int, list[tuple[bytes, dict[str, str]]]] = {}
    with StoreReader(store) as reader:
        for message in reader.walk():
            found.setdefault(message.queue_id, []).append((message.body, message.properties))
    return found


async def _send(broker: Server, topic: str, queues: dict[int, list[tuple[bytes, dict[str, str]]]]) -> None:
    """Send messages, those of a queue one request after the other, the queues side by side."""
    async with Producer("bench", broker.namesrv) as producer:
        targets = {queue.queue_id: queue for queue in await producer.queues(topic)}

        async def send_in_order(target: MessageQueue, messages: list[tuple[bytes, dict[str, str]]]) -> None:
            for begin in range(0, len(messages), MESSAGES_A_REQUEST):
                some = messages[begin : begin + MESSAGES_A_REQUEST]
                await producer.send_batch([Message(topic, body, properties=dict(own)) for body, own in some], target)

        await asyncio.gather(*(send_in_order(targets[queue_id], messages) for queue_id, messages in queues.items()))
