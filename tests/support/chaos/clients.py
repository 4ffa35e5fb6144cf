"""A process of clients for a chaos run: `python -m support.chaos.clients ROLE NAME NAMESRV DIRECTORY [--quick]`.

    producers    lanes of an asyncio Producer: to queues by key, to any queue, in streams, in batches; and one of the
                 synchronous client
    consumers    one member of each group: side by side, in order, and the synchronous client's iteration

It runs until SIGTERM, then closes its clients and ends. With --quick, half-open connections are noticed within two
seconds instead of ten.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from rucola.client import ConsumeFromWhere, Message, MessageExt, Producer, PushConsumer, instance, select_by_hash, sync
from rucola.client.producer.producer import SendResult
from rucola.errors import MQError
from support.chaos.ledger import ACKNOWLEDGED, KEYED, TRIED, Ledger

TOPIC = "Chaos"
SIDE_BY_SIDE, IN_ORDER, SYNCHRONOUS = GROUPS = ["side_by_side", "in_order", "synchronous"]
KEYED_LANES = 4
PAUSE_S = 0.03
TIMEOUT_MS = 1500
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


class Producers:
    """Lanes, each of which sends one message, stream or batch after another."""

    def __init__(self, name: str, ledger: Ledger, stopping: asyncio.Event) -> None:
        self._name = name
        self._ledger = ledger
        self._stopping = stopping

    async def run(self, namesrv: str) -> None:
        async with Producer("producers", namesrv) as producer:
            lanes = [self._keyed(producer, f"{KEYED}{number}.{self._name}") for number in range(KEYED_LANES)]
            lanes += [self._plain(producer), self._streams(producer), self._batches(producer)]
            blocking = threading.Thread(target=self._blocking, args=(namesrv,))
            blocking.start()
            await asyncio.gather(*lanes)
            await asyncio.to_thread(blocking.join)

    def _messages(self, lane: str) -> AsyncIterator[Message]:
        async def messages() -> AsyncIterator[Message]:
            for number in itertools.count():
                if self._stopping.is_set():
                    return
                await asyncio.sleep(PAUSE_S)
                yield self._message(lane, number)

        return messages()

    def _message(self, lane: str, number: int) -> Message:
        name = f"{lane}/{number}"
        self._ledger.note(TRIED, name)
        return Message(TOPIC, name.encode(), keys=name)

    def _acknowledged(self, message: Message, result: SendResult) -> None:
        self._ledger.note(ACKNOWLEDGED, message.body.decode(), result.queue.broker_name)

    async def _keyed(self, producer: Producer, lane: str) -> None:
        async for message in self._messages(lane):
            await self._try(message, lambda: producer.send(message, select_by_hash(lane), TIMEOUT_MS))  # noqa: B023

    async def _plain(self, producer: Producer) -> None:
        async for message in self._messages(f"plain.{self._name}"):
            await self._try(message, lambda: producer.send(message, timeout_ms=TIMEOUT_MS))  # noqa: B023

    async def _try(self, message: Message, send: Callable[[], Awaitable[SendResult]]) -> None:
        try:
            self._acknowledged(message, await send())
        except MQError as error:
            logging.info("%s: %s", message.keys, error)

    async def _streams(self, producer: Producer) -> None:
        """An error ends a stream, and the next one begins."""
        messages = self._messages(f"stream.{self._name}")
        while not self._stopping.is_set():
            under_way: list[Message] = []

            async def noted(under_way: list[Message] = under_way) -> AsyncIterator[Message]:
                async for message in messages:
                    under_way.append(message)
                    yield message

            try:
                async for result in producer.send_many(noted(), in_flight=8, timeout_ms=TIMEOUT_MS):
                    self._acknowledged(under_way.pop(0), result)
            except MQError as error:
                logging.info("stream: %s", error)

    async def _batches(self, producer: Producer) -> None:
        for number in itertools.count():
            if self._stopping.is_set():
                return
            await asyncio.sleep(4 * PAUSE_S)
            batch = [self._message(f"batch.{self._name}", 4 * number + index) for index in range(4)]
            try:
                for message, result in zip(batch, await producer.send_batch(batch, None, TIMEOUT_MS), strict=True):
                    self._acknowledged(message, result)
            except MQError as error:
                logging.info("batch: %s", error)

    def _blocking(self, namesrv: str) -> None:
        with sync.Producer("blocking_producers", namesrv) as producer:
            for number in itertools.count():
                if self._stopping.is_set():
                    return
                time.sleep(PAUSE_S)
                message = self._message(f"blocking.{self._name}", number)
                try:
                    self._acknowledged(message, producer.send(message, timeout_ms=TIMEOUT_MS))
                except MQError as error:
                    logging.info("%s: %s", message.keys, error)


class Consumers:
    """A member of each group. Their ledgers are shared with the other members."""

    def __init__(self, namesrv: str, directory: Path, stopping: asyncio.Event) -> None:
        self._namesrv = namesrv
        self._ledgers = {group: Ledger(directory / f"{group}.ledger") for group in GROUPS}
        self._stopping = stopping

    async def run(self) -> None:
        blocking = threading.Thread(target=self._blocking)
        blocking.start()
        await asyncio.gather(*(self._consume(group, orderly=group == IN_ORDER) for group in (SIDE_BY_SIDE, IN_ORDER)))
        await asyncio.to_thread(blocking.join)

    def _note(self, group: str, message: MessageExt) -> None:
        self._ledgers[group].note(group, message.body.decode(), message.store_host)

    async def _consume(self, group: str, *, orderly: bool) -> None:
        consumer = PushConsumer(group, self._namesrv, orderly=orderly, consume_from=FIRST)
        consumer.subscribe(TOPIC)
        consumer.listen(lambda message: self._note(group, message))
        async with consumer:
            await self._stopping.wait()

    def _blocking(self) -> None:
        consumer = sync.PushConsumer(SYNCHRONOUS, self._namesrv, consume_from=FIRST)
        consumer.subscribe(TOPIC)
        with consumer:
            while not self._stopping.is_set():
                for message in consumer.messages(idle_timeout_ms=200):
                    self._note(SYNCHRONOUS, message)
                    if self._stopping.is_set():
                        consumer.ack(message)
                        break


async def main(role: str, name: str, namesrv: str, directory: Path) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    print("ready", flush=True)
    if role == "producers":
        await Producers(name, Ledger(directory / f"{name}.ledger"), stopping).run(namesrv)
    else:
        await Consumers(namesrv, directory, stopping).run()


if __name__ == "__main__":
    if sys.argv[-1] == "--quick":
        instance.PROBE_INTERVAL_MS, instance.PROBE_AFTER_MS, instance.PROBE_TIMEOUT_MS = 200, 500, 1000
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])))
