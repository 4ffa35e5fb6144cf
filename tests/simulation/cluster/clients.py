"""The clients of a run: Rucola's, with the programs around them, which note what they sent and got."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any

from rucola.admin.message_track import REDRIVEN_FROM
from rucola.client import (
    ConsumeFromWhere,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageModel,
    Producer,
    PullConsumer,
    PullStatus,
    PushConsumer,
    ReconsumeLater,
    SendResult,
    SendStatus,
    SimpleConsumer,
    SuspendCurrentQueueAMoment,
    TransactionProducer,
    select_by_hash,
)
from rucola.errors import BrokerError, MQError
from rucola.message.properties import TIMER_DELAY_MS
from simulation.cluster.history import Delivery, Position, Sent
from simulation.cluster.plan import Client

if TYPE_CHECKING:
    from simulation.cluster.run import Run

DELAYS_S = (0.0, 1.0, 5.0, 10.0)
"""Of the first delay levels."""
KEYS = 6
INVISIBLE_MS = 10_000
PAUSE_S = 0.25
"""Between two sends of a producer, on average."""


def is_disliked(body: str) -> bool:
    """Whether a picky listener never takes a message, unless an operator sends it again."""
    return zlib.crc32(body.encode()) % 8 == 0


class Program:
    """One process with one client. Draws from its own generator, so that it does not depend on other clients."""

    def __init__(self, run: Run, client: Client, process: str) -> None:
        self.run = run
        self.client = client
        self.process = process
        self.chance = Random(f"{run.plan.seed}/{process}")
        self._number = 0
        self.leaving = asyncio.Event()
        self.using: object = None
        """The client."""

    def say(self, what: str) -> None:
        self.run.transcript.add(self.client.name, what)

    def now_s(self) -> float:
        return self.run.loop.time()

    async def live(self) -> None:
        """Run until the process leaves; an error of the client's start is retried, as a supervisor does."""
        programs: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "producer": self.produce,
            "keyed": self.produce_in_order,
            "delayed": self.produce_delayed,
            "transactional": self.produce_in_transactions,
            "push": self.consume,
            "orderly": self.consume,
            "broadcast": self.consume,
            "pull": self.pull,
            "pop": self.receive,
            "timed": self.produce_timed,
            "picky": self.consume,
        }
        if self.run.shop is not None:
            programs |= self.run.shop.programs(self)
        while not self.leaving.is_set():
            try:
                await programs[self.client.kind]()
                return
            except MQError as error:
                self.say(f"fails: {type(error).__name__}: {error}")
                await asyncio.sleep(1)

    # Producers.

    async def _pause(self) -> None:
        await asyncio.sleep(self.chance.expovariate(1 / PAUSE_S))

    def _is_sending(self) -> bool:
        return self.run.is_sending and not self.leaving.is_set()

    def _new(self, topic: str, *, is_retried: bool, delay_s: float = 0.0, decision: str = "") -> Sent:
        self._number += 1
        body = f"{self.process}:{self._number}"
        sent = Sent(body, topic, self.now_s(), delay_s, is_retried=is_retried, decision=decision)
        self.run.history.sent[body] = sent
        return sent

    def _acked(self, sent: Sent, result: SendResult, *, is_position: bool = True) -> None:
        queue = result.queue
        self.run.count(f"send {sent.body.partition('-')[0]} {result.status.name}")
        if result.status is not SendStatus.SEND_OK:
            self.say(f"sent {sent.body}: {result.status.name}")
            return
        sent.acked_s, sent.broker = self.now_s(), queue.broker_name
        if is_position:
            sent.position = Position((queue.topic, queue.broker_name, queue.queue_id), result.queue_offset)
        self.say(f"sent {sent.body} to {queue.topic} {queue.broker_name} {queue.queue_id} at {result.queue_offset}")

    async def _send(self, sent: Sent, send: Coroutine[Any, Any, SendResult], *, is_position: bool = True) -> bool:
        try:
            result = await send
        except MQError as error:
            self.run.count(f"send {self.client.kind} {type(error).__name__}")
            self.say(f"does not know what became of {sent.body}: {type(error).__name__}: {error}")
            return False
        self._acked(sent, result, is_position=is_position)
        return result.status is SendStatus.SEND_OK

    async def produce(self) -> None:
        retries = self.chance.choice((0, 2))
        async with Producer("p", self.run.world.namesrv, retry_times=retries) as producer:
            self.using = producer
            while self._is_sending():
                await self._pause()
                if self.client.topic in self.run.closed_topics:
                    continue
                if self.chance.random() < 0.2:
                    batch = [
                        self._new(self.client.topic, is_retried=retries > 0) for _ in range(self.chance.randrange(2, 6))
                    ]
                    messages = [Message(each.topic, each.body.encode()) for each in batch]
                    try:
                        results = await producer.send_batch(messages)
                    except MQError as error:
                        self.say(f"does not know what became of a batch: {type(error).__name__}: {error}")
                        continue
                    for each, result in zip(batch, results, strict=True):
                        self._acked(each, result)
                else:
                    sent = self._new(self.client.topic, is_retried=retries > 0)
                    await self._send(sent, producer.send(Message(sent.topic, sent.body.encode())))
            await self.leaving.wait()

    async def produce_in_order(self) -> None:
        async with Producer("p-keyed", self.run.world.namesrv, retry_times=0) as producer:
            self.using = producer
            while self._is_sending():
                await self._pause()
                key = f"key-{self.chance.randrange(KEYS)}"
                sent = self._new(self.client.topic, is_retried=False)
                message = Message(sent.topic, sent.body.encode(), keys=key)
                await self._send(sent, producer.send(message, select_by_hash(key)))
            await self.leaving.wait()

    async def produce_delayed(self) -> None:
        async with Producer("p-delayed", self.run.world.namesrv, retry_times=0) as producer:
            self.using = producer
            while self._is_sending():
                await self._pause()
                level = self.chance.randrange(1, len(DELAYS_S))
                sent = self._new(self.client.topic, is_retried=False, delay_s=DELAYS_S[level])
                message = Message(sent.topic, sent.body.encode())
                message.delay_level = level
                await self._send(sent, producer.send(message), is_position=False)
            await self.leaving.wait()

    async def produce_timed(self) -> None:
        async with Producer("p-timed", self.run.world.namesrv, retry_times=0) as producer:
            self.using = producer
            while self._is_sending():
                await self._pause()
                delay_s = self.chance.choice((0.05, 1.0, 7.0, 40.0)) * self.chance.uniform(0.5, 1.5)
                sent = self._new(self.client.topic, is_retried=False, delay_s=round(delay_s, 3))
                message = Message(sent.topic, sent.body.encode())
                message.properties[TIMER_DELAY_MS] = str(round(delay_s * 1000))
                await self._send(sent, producer.send(message), is_position=False)
            await self.leaving.wait()

    async def produce_in_transactions(self) -> None:
        decisions = {
            "commit": LocalTransactionState.COMMIT_MESSAGE,
            "rollback": LocalTransactionState.ROLLBACK_MESSAGE,
        }

        async def check(message: MessageExt) -> LocalTransactionState:
            sent = self.run.history.sent[message.body.decode()]
            self.say(f"is asked for {sent.body}: {sent.decision}")
            # A transaction that was never executed is rolled back, as the table of a database would show.
            if sent.decision == "unknown":
                sent.decision = "rollback"
            return decisions[sent.decision]

        async with TransactionProducer(
            "p-transactional", self.run.world.namesrv, check=check, topics=[self.client.topic], retry_times=0
        ) as producer:
            self.using = producer
            while self._is_sending():
                await self._pause()
                decision, tells = self.chance.choice(("commit", "commit", "rollback")), self.chance.random() < 0.7
                sent = self._new(self.client.topic, is_retried=False, decision="unknown")

                async def execute(
                    message: Message, sent: Sent = sent, decision: str = decision, tells: bool = tells
                ) -> LocalTransactionState:
                    await asyncio.sleep(self.chance.choice((0.0, 0.01, 0.5)))
                    if sent.decision == "unknown":  # else a check has rolled it back
                        sent.decision = decision
                    return decisions[sent.decision] if tells else LocalTransactionState.UNKNOW

                await self._send(
                    sent,
                    producer.send_in_transaction(Message(sent.topic, sent.body.encode()), execute),
                    is_position=False,
                )
            await self.leaving.wait()

    # Consumers.

    def _delivery(self, message: MessageExt, broker: str) -> Delivery:
        # A retried message has the topic of the first delivery, and the position of the retry.
        is_retry = message.reconsume_times > 0 and not self.is_orderly
        is_retry |= REDRIVEN_FROM in message.properties
        topic = f"%RETRY%{self.group}" if is_retry else message.topic
        position = Position((topic, broker, message.queue_id), message.queue_offset)
        return Delivery(self.group, self.process, position, message.body.decode(), self.now_s())

    @property
    def is_orderly(self) -> bool:
        shop = self.run.shop
        return self.client.kind == "orderly" or (shop is not None and self.group == shop.group and shop.is_orderly)

    @property
    def group(self) -> str:
        return self.client.group

    def _broker_of(self, message: MessageExt) -> str:
        return self.run.broker_at(message.store_host)

    async def consume(self) -> None:
        is_orderly, is_picky = self.is_orderly, self.client.kind == "picky"

        async def listen(message: MessageExt) -> None:
            delivery = self._delivery(message, self._broker_of(message))
            self.run.history.begin(delivery, in_order=is_orderly)
            is_failing = self.chance.random() < 0.05 and message.reconsume_times < 2 and self.client.kind != "broadcast"
            if is_picky:
                is_failing = is_disliked(delivery.body) and REDRIVEN_FROM not in message.properties
            await asyncio.sleep(self.chance.choice((0.0, 0.001, 0.02, 0.2)))
            self.run.history.end(delivery, self.now_s(), is_consumed=not is_failing)
            self.run.count(f"consume {self.client.kind} {'fails' if is_failing else 'ok'}")
            self.say(
                f"{'fails with' if is_failing else 'consumes'} {delivery.body} of {message.topic} "
                f"{delivery.position.queue[1]} {message.queue_id} at {message.queue_offset}"
            )
            if is_failing:
                raise SuspendCurrentQueueAMoment(500) if is_orderly else ReconsumeLater()

        consumer = PushConsumer(
            self.group,
            self.run.world.namesrv,
            orderly=is_orderly,
            message_model=MessageModel.BROADCASTING if self.client.kind == "broadcast" else MessageModel.CLUSTERING,
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            max_reconsume_times=1 if is_picky else None,
            offsets_root=self.run.world.machines[self.client.name].directory,
        )
        consumer.subscribe(self.client.topic)
        consumer.listen(listen)
        async with consumer:
            self.using = consumer
            await self.leaving.wait()

    async def pull(self) -> None:
        """Read each queue from its begin; what is read must be without a gap."""
        next_offsets: dict[Any, int] = {}
        async with PullConsumer(self.group, self.run.world.namesrv) as consumer:
            self.using = consumer
            while not self.leaving.is_set():
                await asyncio.sleep(0.5)
                try:
                    for queue in await consumer.queues(self.client.topic):
                        offset = next_offsets.get(queue, 0)
                        result = await consumer.pull(queue, offset)
                        if result.status is PullStatus.FOUND:
                            self._read(queue.broker_name, offset, result.messages)
                            next_offsets[queue] = result.next_begin_offset
                        elif self.run.plan.reserved_s and result.next_begin_offset > offset:
                            self._skip(queue, offset, result.next_begin_offset)
                            next_offsets[queue] = result.next_begin_offset
                except MQError as error:
                    self.say(f"cannot pull: {type(error).__name__}: {error}")

    def _skip(self, queue: Any, begin: int, end: int) -> None:
        """Go on behind what retention has removed."""
        name = queue.topic, queue.broker_name, queue.queue_id
        for offset in range(begin, end):
            if (position := Position(name, offset)) not in self.run.history.expired:
                self.run.history.broken.append(f"{self.group} has to skip {position}, which has not expired")
        self.say(f"skips {queue.topic} {queue.broker_name} {queue.queue_id} from {begin} to {end}")

    def _read(self, broker: str, offset: int, messages: list[MessageExt]) -> None:
        self.run.count("consume pull ok")
        for number, message in enumerate(messages):
            delivery = self._delivery(message, broker)
            self.run.history.begin(delivery)
            self.run.history.end(delivery, self.now_s(), is_consumed=True)
            if message.queue_offset != offset + number:
                self.run.history.broken.append(
                    f"{self.group} has pulled {delivery.position} and expected {offset + number}"
                )
        last = messages[-1].queue_offset
        self.say(f"pulls {self.client.topic} {broker} {messages[0].queue_id} from {offset} to {last}")

    async def receive(self) -> None:
        async with SimpleConsumer(self.group, self.run.world.namesrv) as consumer:
            self.using = consumer
            while not self.leaving.is_set():
                asked_s = self.now_s()
                try:
                    messages = await consumer.receive(
                        self.client.topic, self.chance.randrange(1, 9), invisible_ms=INVISIBLE_MS, wait_ms=3000
                    )
                except MQError as error:
                    self.say(f"cannot receive: {type(error).__name__}: {error}")
                    await asyncio.sleep(0.5)
                    continue
                received_s = self.now_s()
                for message in messages:
                    delivery = self._delivery(message, self._broker_of(message))
                    delivery.asked_s = asked_s
                    self.run.history.begin(delivery)
                    await asyncio.sleep(self.chance.choice((0.0, 0.001, 0.02)))
                    if self.chance.random() < 0.1:
                        self.say(f"leaves {delivery.body} to others")
                        continue
                    self.run.history.end(delivery, self.now_s(), is_consumed=True)
                    try:
                        await consumer.ack(message)
                    except BrokerError as error:
                        self.say(f"cannot acknowledge {delivery.body}: {error}")
                        continue
                    except MQError as error:
                        self.say(f"does not know whether {delivery.body} is acknowledged: {error}")
                        continue
                    self.say(f"acknowledges {delivery.body}")
                    self.run.count("consume pop ok")
                    if self.now_s() < received_s + INVISIBLE_MS / 2000:
                        self.run.history.acked(self.group, delivery.body, self.now_s())
