"""The replay job from a store to a live broker, in this process and in Spark, beside the plain Producer."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import frames
from figures import Aim, Figure, median
from floors import Options
from load import answer_to
from processes import Spent, spent_in_turns
from rucola.client import Message, MessageQueue, Producer
from rucola.client.producer.ordered_sender import MAX_COUNT
from rucola.spark.jobs import replay
from rucola.spark.session import AnySession, LazySession, local_session
from rucola.store.directory_reader import StoreReader
from servers import Server, standalone
from stored import check_stored
from written import QUEUES, write

TOPIC = "BenchReplay"
RECORD_SIZE = 1024
STORED = 256 * 1024
FLOOR = "the plain Producer sending the same messages, in batches of the same size"


def measure(options: Options) -> list[Figure]:
    """Write a store, and send its messages to a broker in all ways by turns, each time to a topic of its own."""
    count = options.count(STORED)
    session = local_session("rucola-bench")
    try:
        with TemporaryDirectory(prefix="rucola-bench-") as name:
            folder = Path(name)
            write(folder / "store", TOPIC, RECORD_SIZE, count)
            queues = _messages(folder / "store")
            with standalone(folder / "broker") as broker:
                numbers = itertools.count()

                def to_a_topic(send: Callable[[str], None]) -> None:
                    target = f"{TOPIC}{next(numbers)}"
                    answer_to(broker, frames.create_topic(target, QUEUES))
                    send(target)
                    check_stored(broker, target, count, QUEUES)

                def replay_by(spark: AnySession, rates: list[float]) -> Callable[[str], None]:
                    def send(target: str) -> None:
                        source, ledger = folder / "store", folder / target
                        done = replay.run(spark, source, replay.ReplayOptions(broker.namesrv, ledger, target))
                        if done.acknowledged != count:
                            raise RuntimeError(f"of {count} messages {done.acknowledged} were acknowledged")
                        rates.append(_rate(ledger))

                    return send

                rates: list[list[float]] = [[], []]
                ways = [
                    lambda target: asyncio.run(_send(broker, target, queues)),
                    replay_by(LazySession("rucola-bench", use_spark=False), rates[0]),
                    replay_by(session, rates[1]),
                ]
                acts = [lambda way=way: to_a_topic(way) for way in ways]  # type: ignore[misc]
                floor, *both = spent_in_turns(acts, max(2, options.rounds - 2))
    finally:
        session.stop()
    names = ("replay_in_one_process", "replay_in_Spark")
    return [_figure(name, count, of_way, floor, rate) for name, of_way, rate in zip(names, both, rates, strict=True)]


def _figure(name: str, count: int, spent: list[Spent], floor: list[Spent], rates: list[float]) -> Figure:
    """Return the rate of whole jobs, from counting the messages to the last acknowledgement."""

    def rate(each: Spent) -> float:
        return count / each.wall_s

    def cpu_us(each: Spent) -> float:
        return each.cpu_s / count * 1e6

    return Figure(
        name,
        median(rate, spent),
        "messages/s",
        floor=median(rate, floor),
        floor_is=FLOOR,
        more_is_better=True,
        ratios=[one.wall_s / other.wall_s for one, other in zip(spent, floor, strict=True)],
        aims=[Aim("ratio", 2)],
        more={
            "messages": count,
            "messages/s_while_sending": median(float, rates),
            "least_messages/s": min(map(rate, spent)),
            "most_messages/s": max(map(rate, spent)),
            "µs_CPU/message_with_broker": median(cpu_us, spent),
            "µs_CPU/message_with_broker_of_Producer": median(cpu_us, floor),
        },
    )


def _rate(ledger: Path) -> float:
    """Return the messages per second from the first acknowledgement to the last, without the planning before it."""
    acks = [json.loads(line) for path in ledger.glob("*.acks") for line in path.read_text().splitlines()]
    times = [ack["time"] for ack in acks]
    return sum(ack["count"] for ack in acks) / (max(times) - min(times)) * 1000


def _messages(store: Path) -> dict[int, list[tuple[bytes, dict[str, str]]]]:
    """Return body and properties of every message in a store, by queue."""
    found: dict[int, list[tuple[bytes, dict[str, str]]]] = {}
    with StoreReader(store) as reader:
        for message in reader.walk():
            found.setdefault(message.queue_id, []).append((message.body, message.properties))
    return found


async def _send(broker: Server, topic: str, queues: dict[int, list[tuple[bytes, dict[str, str]]]]) -> None:
    """Send messages, one request at a time per queue, to all queues concurrently."""
    async with Producer("bench", broker.namesrv) as producer:
        targets = {queue.queue_id: queue for queue in await producer.queues(topic)}

        async def send_in_order(target: MessageQueue, messages: list[tuple[bytes, dict[str, str]]]) -> None:
            for begin in range(0, len(messages), MAX_COUNT):
                some = messages[begin : begin + MAX_COUNT]
                await producer.send_batch([Message(topic, body, properties=dict(own)) for body, own in some], target)

        await asyncio.gather(*(send_in_order(targets[queue_id], messages) for queue_id, messages in queues.items()))
