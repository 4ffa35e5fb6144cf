"""PushConsumer: messages come to the application, and the group shares the queues.

The way of a message:

    rebalance    the group's members and a topic's queues give this member's share, see `rebalance`
    pull         one task for each own queue asks its broker, which holds the request until something comes
    process      the message is held in the queue's ProcessQueue until it is done, and waits in one line for
    deliver      whoever iterates (`async for`), or a listener, of which several run at a time
    done         the smallest offset not done moves on, and is committed every 5 s, with pulls, and at the end

Delivery is at least once: what was not done before the end, or before the queue went to another member, comes again.

An iteration counts a message as done when the next one is asked for, or earlier by `ack`. A message left in hand when
the loop ends otherwise (by `break`, or by an error) is not done. `reconsume_later` gives it back.

A listener that raises gives the message back: CONSUMER_SEND_MSG_BACK makes the broker deliver it again later through
`%RETRY%group`, which every consumer subscribes to, under its own topic. If the broker cannot take it, the listener
gets it again after `local_retry_ms`, with `reconsume_times` raised, and nothing beyond it is committed meanwhile.

Where a group begins in a queue for which it has no committed offset, by `ConsumeFromWhere`:

                                a topic of its own        %RETRY%group
    CONSUME_FROM_LAST_OFFSET    the end                   0
    CONSUME_FROM_FIRST_OFFSET   0                         0
    CONSUME_FROM_TIMESTAMP      the offset at that time   the end

A broker answers 0, not "none", for a young queue whose first message is still in memory, so a new group begins at 0
there, whatever was asked for. An offset outside the queue is corrected to the nearest inside.

Answers to `DefaultMQPushConsumer`, its concurrent listener and `RebalanceImpl` of Apache RocketMQ 4.9.8, in
clustering mode. Deliberate differences: an illegal offset is corrected at once, not after 10 s; a member that the
broker does not list (it was started again) keeps its queues while it makes itself known.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import Enum
from typing import Any, TypeAlias

from rucola.client.background import Background
from rucola.client.instance import ClientInstance, GroupClient
from rucola.client.own_queue import Delivery, OwnQueue, now_ms
from rucola.client.pull import PULL_BATCH_SIZE, PullConsumer, PullResult, PullStatus
from rucola.client.rebalance import Strategy, average
from rucola.client.route import TopicRoute
from rucola.errors import BrokerError, ConfigError, MQError, RemotingConnectError, RemotingError, TopicNotFound
from rucola.message import MessageExt, properties
from rucola.message.topics import check_topic, retry_topic
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import VERSION_TEXT, RemotingCommand
from rucola.protocol.connections import (
    CR_SUCCESS,
    CR_THROW_EXCEPTION,
    ConsumeMessageDirectlyResult,
    ProcessQueueInfo,
)
from rucola.protocol.heartbeat import (
    SUB_ALL,
    ConsumerData,
    GetConsumerListByGroupRequestHeader,
    GetConsumerListByGroupResponseBody,
    SubscriptionData,
    subscription,
)
from rucola.protocol.queue import MessageQueue
from rucola.protocol.retry import ConsumerSendMsgBackRequestHeader
from rucola.protocol.route import MASTER_ID

logger = logging.getLogger(__name__)

REBALANCE_INTERVAL_MS = 20_000
UNBALANCED_PAUSE_MS = 500
"""First wait after a rebalance that could not be finished; it doubles up to the interval."""
PERSIST_INTERVAL_MS = 5000
SUSPEND_MS = 15_000
"""How long a broker may hold a pull."""
PULL_ERROR_PAUSE_MS = 1000
FLOW_CONTROL_PAUSE_MS = 20
SEND_BACK_TIMEOUT_MS = 5000
LOCAL_RETRY_MS = 5000
MAX_RECONSUME_TIMES = 16
CONCURRENCY = 20
CLOSE_GRACE_MS = 10_000
HALF_AN_HOUR_MS = 30 * 60 * 1000

Listener: TypeAlias = Callable[[MessageExt], Awaitable[Any]] | Callable[[MessageExt], Any]
"""A coroutine function, or a plain function, which runs in a thread. What it returns does not matter."""


class ConsumeFromWhere(Enum):
    """Where a group begins in a queue for which nothing is committed; the table stands in the module's docstring."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class PushConsumer(GroupClient):
    """Consumes topics for a group, in clustering mode.

        consumer = PushConsumer("group", "host:9876")
        consumer.subscribe("Flights", "UA || DL")
        async with consumer:
            async for message in consumer:
                ...

    `concurrency` is how many calls of a listener run at a time; `consume_timestamp_ms` belongs to
    CONSUME_FROM_TIMESTAMP and is half an hour ago by default. Once open, the member has its first share of queues.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        instance: ClientInstance | None = None,
        consume_from: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        consume_timestamp_ms: int | None = None,
        strategy: Strategy = average,
        concurrency: int = CONCURRENCY,
        pull_batch_size: int = PULL_BATCH_SIZE,
        max_reconsume_times: int = MAX_RECONSUME_TIMES,
        local_retry_ms: float = LOCAL_RETRY_MS,
    ) -> None:
        super().__init__(group, namesrv, instance)
        self.consume_from = consume_from
        self.consume_timestamp_ms = consume_timestamp_ms
        self.strategy = strategy
        self.concurrency = concurrency
        self.pull_batch_size = pull_batch_size
        self.max_reconsume_times = max_reconsume_times
        self.local_retry_ms = local_retry_ms
        self._retry_topic = retry_topic(group)
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._listener: Listener | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._pulls = PullConsumer(group, instance=self.instance)
        self._queues: dict[MessageQueue, OwnQueue] = {}
        self._line: asyncio.Queue[Delivery | None] = asyncio.Queue()
        self._in_hand: dict[int, Delivery] = {}
        self._background = Background()
        self._listening = Background()
        self._rebalance_due = asyncio.Event()
        self._rebalanced = asyncio.Event()
        self.subscribe(self._retry_topic)

    # What an application calls.

    def subscribe(self, topic: str, expression: str = SUB_ALL) -> None:
        """Consume the topic's messages with one of the tags in `expression` ("TagA || TagB"), or all by "*".

        Takes the place of an earlier subscription of the topic. The topic may come into being later.
        """
        check_topic(topic)
        self._subscriptions[topic] = subscription(topic, expression, version=now_ms())
        self._subscriptions_changed()

    def unsubscribe(self, topic: str) -> None:
        """Consume the topic no more."""
        if self._subscriptions.pop(topic, None) is not None:
            self._subscriptions_changed()

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """This member's share at the moment, the retry topic's queue not counted."""
        return frozenset(queue for queue in self._queues if queue.topic != self._retry_topic)

    async def rebalanced(self) -> None:
        """Wait until the share was next looked at; afterwards `queues` may be the same or another."""
        await self._rebalanced.wait()

    def listen(self, listener: Listener) -> None:
        """Call `listener` with each message, `concurrency` calls at a time; one that raises gives the message back."""
        self._listener = listener
        if self.is_open:
            self._start_listening()

    def __aiter__(self) -> AsyncGenerator[MessageExt, None]:
        return self.messages()

    async def messages(self, idle_timeout_ms: float | None = None) -> AsyncGenerator[MessageExt, None]:
        """Messages as they come, until the consumer is closed, or until none came for `idle_timeout_ms`.

        Asking for the next message says that the one before is done. Several iterations share the messages.
        """
        while True:
            delivery = self._take_now()
            if delivery is None:
                try:
                    async with asyncio.timeout(None if idle_timeout_ms is None else idle_timeout_ms / 1000):
                        delivery = await self._take()
                except TimeoutError:
                    return
            if delivery is None:
                return
            message = delivery.message
            self._in_hand[id(message)] = delivery
            try:
                yield message
            except BaseException:
                self._in_hand.pop(id(message), None)
                raise
            self.ack(message)

    def ack(self, message: MessageExt) -> None:
        """The message, which an iteration gave out, is done. Once more, or after it was given back: no effect."""
        if (delivery := self._in_hand.pop(id(message), None)) is not None:
            delivery.done()

    async def reconsume_later(self, message: MessageExt, delay_level: int = 0) -> None:
        """Give back a message that an iteration gave out: it comes again later, to some member of the group.

        `delay_level` 0 lets the broker choose, longer each time; -1 sends it to the dead letter queue at once.
        """
        if (delivery := self._in_hand.pop(id(message), None)) is not None:
            await self._give_back(delivery, delay_level)

    # Coming and going.

    async def _join(self) -> None:
        self._line = asyncio.Queue()
        await self._pulls.open()
        self.instance.add_consumer(self)
        for topic in self._subscriptions:
            with suppress(TopicNotFound):
                await self.instance.routes.find(topic)
        await self.instance.beat()
        balanced = await self._rebalance()
        self._background.start(self._keep_balanced(balanced), f"rebalance of {self.group}")
        self._background.start(self._keep_persisting(), f"offsets of {self.group}")
        if self._listener is not None:
            self._start_listening()

    async def _leave(self) -> None:
        self._line.put_nowait(None)
        await self._listening.close(CLOSE_GRACE_MS)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        await self._background.close()
        await self._persist()
        self._queues.clear()
        await self.instance.remove_consumer(self)
        await self._pulls.close()

    def _subscriptions_changed(self) -> None:
        async def announce() -> None:
            await self.instance.beat()
            self._rebalance_due.set()

        if self.is_open:
            self._background.start(announce(), f"subscriptions of {self.group}")

    # What the instance asks and tells.

    def consumer_data(self) -> ConsumerData:
        """The group as heartbeats describe it."""
        return ConsumerData(
            consume_from_where=self.consume_from.value,
            group_name=self.group,
            subscription_data_set=list(self._subscriptions.values()),
        )

    def members_changed(self) -> None:
        """Rebalance now."""
        self._rebalance_due.set()

    def route_changed(self, route: TopicRoute) -> None:
        """Rebalance now, if the topic is one of ours."""
        if route.topic in self._subscriptions:
            self._rebalance_due.set()

    # What operators ask, see `operator`.

    def settings(self) -> dict[str, str]:
        """The settings of the consumer, by Apache's names."""
        return {
            "PROP_CLIENT_VERSION": VERSION_TEXT,
            "PROP_CONSUMEORDERLY": "false",
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_NAMESERVER_ADDR": ";".join(self.instance.name_servers.addresses),
            "PROP_THREADPOOL_CORE_SIZE": str(self.concurrency),
            "consumeFromWhere": self.consume_from.value,
            "consumerGroup": self.group,
            "maxReconsumeTimes": str(self.max_reconsume_times),
            "messageModel": "CLUSTERING",
            "pullBatchSize": str(self.pull_batch_size),
        }

    def held(self) -> dict[MessageQueue, ProcessQueueInfo]:
        """What is held of each own queue."""
        return {queue: own.info() for queue, own in sorted(self._queues.items())}

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Begin anew at these offsets in those of the queues that are own, and commit them.

        What was pulled before and is not done by then is not given out, or, once given out, commits nothing.
        """
        for queue, offset in offsets.items():
            own = self._queues.get(queue)
            if own is not None:
                own.begin_anew(offset)
                if own.task is not None:
                    own.task.cancel()
                self._start_pull(own)
                await self._commit(own)

    async def consume_directly(self, message: MessageExt) -> ConsumeMessageDirectlyResult:
        """Give the message to the listener now. ConfigError where the application iterates instead."""
        if self._listener is None:
            raise ConfigError(f"the consumer of group {self.group} iterates over messages, it has no listener to call")
        self._restore_topic(message)
        begin = time.monotonic()
        remark = None
        try:
            await self._call(self._listener, message)
        except Exception as error:
            logger.warning("group %s: the listener failed on message %s", self.group, message.msg_id, exc_info=error)
            remark = f"{type(error).__name__}: {error}"
        return ConsumeMessageDirectlyResult(
            consume_result=CR_SUCCESS if remark is None else CR_THROW_EXCEPTION,
            remark=remark,
            spent_time_mills=round((time.monotonic() - begin) * 1000),
        )

    # Rebalance.

    async def _keep_balanced(self, balanced: bool) -> None:
        pause_ms = UNBALANCED_PAUSE_MS
        while True:
            try:
                async with asyncio.timeout((REBALANCE_INTERVAL_MS if balanced else pause_ms) / 1000):
                    await self._rebalance_due.wait()
                pause_ms = UNBALANCED_PAUSE_MS
            except TimeoutError:
                pause_ms = min(2 * pause_ms, REBALANCE_INTERVAL_MS)
            self._rebalance_due.clear()
            balanced = await self._rebalance()

    async def _rebalance(self) -> bool:
        """Take up and give up queues, topic by topic; whether everything stands as it should."""
        balanced = True
        for topic in list(self._subscriptions):
            try:
                balanced &= await self._rebalance_topic(topic)
            except TopicNotFound:
                balanced = False
            except MQError as error:
                logger.warning("group %s cannot rebalance topic %s now: %s", self.group, topic, error)
                balanced = False
        for own in list(self._queues.values()):
            if own.queue.topic not in self._subscriptions:
                await self._give_up(own)
        rebalanced, self._rebalanced = self._rebalanced, asyncio.Event()
        rebalanced.set()
        return balanced

    async def _rebalance_topic(self, topic: str) -> bool:
        route = await self.instance.routes.find(topic)
        members = await self._members(route)
        if self.instance.client_id not in members:
            await self.instance.beat()
            return False
        try:
            share = self.strategy(self.instance.client_id, sorted(route.read_queues), sorted(members))
        except Exception:
            logger.exception("group %s: the rebalance strategy failed on topic %s; the share stays", self.group, topic)
            return False
        for own in list(self._queues.values()):
            if own.queue.topic == topic and own.queue not in share:
                await self._give_up(own)
        taken = [await self._take_up(queue) for queue in share if queue not in self._queues]
        return all(taken)

    async def _members(self, route: TopicRoute) -> list[str]:
        """The client ids of the group, as one of the topic's brokers knows them; none where it knows no member."""
        brokers = [addresses for addresses in route.brokers.values() if addresses]
        if not brokers:
            raise RemotingConnectError(f"the route of topic {route.topic} names no broker")
        addresses = random.choice(brokers)
        address = addresses.get(MASTER_ID) or next(iter(addresses.values()))
        header = GetConsumerListByGroupRequestHeader(consumer_group=self.group)
        request = RemotingCommand.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        try:
            answer = await self.instance.remoting.invoke_ok(address, request)
        except BrokerError as error:
            logger.info("group %s: %s", self.group, error)
            return []
        except RemotingError:
            self.instance.renew_route(route.topic)
            raise
        return decode_body(GetConsumerListByGroupResponseBody, answer.body).consumer_id_list

    async def _take_up(self, queue: MessageQueue) -> bool:
        try:
            begin_offset = await self._begin_offset(queue)
        except RemotingError as error:
            logger.warning("group %s cannot begin with %s now: %s", self.group, queue, error)
            return False
        own = self._queues[queue] = OwnQueue(queue, begin_offset)
        self._start_pull(own)
        logger.info("group %s: %s begins with %s at %d", self.group, self.instance.client_id, queue, begin_offset)
        return True

    async def _give_up(self, own: OwnQueue) -> None:
        del self._queues[own.queue]
        own.progress.is_dropped = True
        if own.task is not None:
            own.task.cancel()
        await self._commit(own)
        logger.info("group %s: %s gives up %s", self.group, self.instance.client_id, own.queue)

    async def _begin_offset(self, queue: MessageQueue) -> int:
        committed = await self._pulls.committed(queue)
        if committed is not None:
            return committed
        is_retry = queue.topic == self._retry_topic
        match self.consume_from:
            case ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET:
                return 0 if is_retry else await self._pulls.max_offset(queue)
            case ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
                return 0
            case ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
                if is_retry:
                    return await self._pulls.max_offset(queue)
                timestamp_ms = self.consume_timestamp_ms
                if timestamp_ms is None:
                    timestamp_ms = now_ms() - HALF_AN_HOUR_MS
                return await self._pulls.search_offset(queue, timestamp_ms)

    # Pull.

    def _start_pull(self, own: OwnQueue) -> None:
        own.task = self._background.start(self._pull(own), f"pull of {own.queue} for {self.group}")

    async def _pull(self, own: OwnQueue) -> None:
        queue = own.queue
        while not own.progress.is_dropped and (wanted := self._subscriptions.get(queue.topic)) is not None:
            progress = own.progress
            if not progress.has_room:
                own.room.clear()
                await own.room.wait()
                continue
            own.pulled_ms = now_ms()
            try:
                result = await self._pulls.pull(
                    queue,
                    progress.next_offset,
                    self.pull_batch_size,
                    wanted,
                    suspend_ms=SUSPEND_MS,
                    commit_offset=progress.commit_offset or None,
                )
            except MQError as error:
                is_busy = isinstance(error, BrokerError) and error.code == ResponseCode.FLOW_CONTROL
                if not is_busy:
                    logger.warning("group %s: pull of %s failed: %s", self.group, queue, error)
                await asyncio.sleep((FLOW_CONTROL_PAUSE_MS if is_busy else PULL_ERROR_PAUSE_MS) / 1000)
                continue
            if result.status is PullStatus.OFFSET_ILLEGAL:
                await self._correct(own, result)
            else:
                for message in progress.put(result.messages, result.next_begin_offset):
                    self._restore_topic(message)
                    self._line.put_nowait(Delivery(own, progress, message))

    def _restore_topic(self, message: MessageExt) -> None:
        """Give a message that is tried again the topic that it was sent to."""
        if message.topic == self._retry_topic:
            message.topic = message.properties.get(properties.RETRY_TOPIC, message.topic)

    async def _correct(self, own: OwnQueue, result: PullResult) -> None:
        """Begin anew inside the queue. What is still held came from offsets that are gone, and commits nothing."""
        illegal = own.progress.next_offset
        logger.warning(
            "group %s: %s has %d to %d, not offset %d; going on at %d",
            self.group, own.queue, result.min_offset, result.max_offset, illegal, result.next_begin_offset,
        )  # fmt: skip
        own.begin_anew(result.next_begin_offset)
        await self._commit(own)
        if result.next_begin_offset == illegal:
            await asyncio.sleep(PULL_ERROR_PAUSE_MS / 1000)

    # Deliver.

    async def _take(self) -> Delivery | None:
        """The next message in line, waiting for it; None once the consumer is closed."""
        while True:
            delivery = await self._line.get()
            if delivery is None or not self.is_open:
                self._line.put_nowait(None)  # for whoever else waits
                return None
            if not delivery.progress.is_dropped:
                return delivery

    def _take_now(self) -> Delivery | None:
        """The next message in line, where there is one."""
        while self.is_open and not self._line.empty():
            delivery = self._line.get_nowait()
            if delivery is not None and not delivery.progress.is_dropped:
                return delivery
        return None

    def _start_listening(self) -> None:
        assert self._listener is not None
        if not inspect.iscoroutinefunction(self._listener) and self._threads is None:
            self._threads = ThreadPoolExecutor(self.concurrency, f"listener of {self.group}")
        for number in range(self.concurrency):
            self._listening.start(self._deliver_to(self._listener), f"listener {number} of {self.group}")

    async def _deliver_to(self, listener: Listener) -> None:
        while (delivery := await self._take()) is not None:
            message = delivery.message
            try:
                await self._call(listener, message)
            except Exception as error:
                logger.warning(
                    "group %s: the listener failed on message %s of topic %s, tried %d times before",
                    self.group, message.msg_id, message.topic, message.reconsume_times, exc_info=error,
                )  # fmt: skip
                await self._give_back(delivery, 0)
            else:
                delivery.done()

    async def _call(self, listener: Listener, message: MessageExt) -> None:
        if inspect.iscoroutinefunction(listener):
            await listener(message)
        else:
            await asyncio.get_running_loop().run_in_executor(self._threads, listener, message)

    # Done, or not.

    async def _give_back(self, delivery: Delivery, delay_level: int) -> None:
        message = delivery.message
        header = ConsumerSendMsgBackRequestHeader(
            offset=message.physical_offset,
            group=self.group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=message.topic,
            max_reconsume_times=self.max_reconsume_times,
        )
        request = RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        queue = delivery.own.queue
        try:
            answer = await self.instance.invoke_master(queue, request, SEND_BACK_TIMEOUT_MS)
            if answer.code != ResponseCode.SUCCESS:
                raise BrokerError(answer.code, answer.remark, queue.broker_name)
        except RemotingError as error:
            logger.warning("group %s: message %s is tried again here: %s", self.group, message.msg_id, error)
            message.reconsume_times += 1
            self._background.start(self._deliver_later(delivery), f"local retry of {message.msg_id}")
        else:
            delivery.done()

    async def _deliver_later(self, delivery: Delivery) -> None:
        await asyncio.sleep(self.local_retry_ms / 1000)
        self._line.put_nowait(delivery)

    async def _keep_persisting(self) -> None:
        while True:
            await asyncio.sleep(PERSIST_INTERVAL_MS / 1000)
            await self._persist()

    async def _persist(self) -> None:
        await asyncio.gather(*(self._commit(own) for own in list(self._queues.values())))

    async def _commit(self, own: OwnQueue) -> None:
        """Commit how far the queue is done, where that has changed. Failing, it is tried again next time."""
        offset = own.progress.commit_offset
        if offset == own.committed:
            return
        try:
            await self._pulls.commit(own.queue, offset)
        except MQError as error:
            logger.warning("group %s: offset %d of %s could not be committed: %s", self.group, offset, own.queue, error)
        else:
            own.committed = offset
