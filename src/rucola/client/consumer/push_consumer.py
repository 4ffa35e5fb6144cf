"""PushConsumer: messages come to the application, and the group shares the queues.

The way of a message:

    share       the queues that are this member's now, see `share` and `rebalance`
    pulling     one task for each own queue asks its broker, which holds the request until something comes
    line        messages wait, queue by queue, for whoever is free
    deliver     to whoever iterates (`async for`), or to a listener, of which several run at a time
    done        the smallest offset not done moves on, and is committed every 5 s, with pulls, and at the end

Delivery is at least once: what was not done before the end, or before the queue went to another member, comes again.

Messages come side by side, many of one queue at a time, or in order: with `orderly`, of each queue one alone is in
hand, everywhere in the group. In clustering each message goes to one member of the group, in broadcasting to all.

An iteration counts a message as done when the next one is requested, or earlier by `ack`. A message in hand when the
loop ends otherwise (by `break`, an error, a cancellation) is not done: it is requeued in front of its queue and
delivered again to the next iteration of this consumer, or to another running one. Its `reconsume_times` stay, since it
may not have failed. Until it is delivered again, `ack` and `reconsume_later` still settle it. If the consumer closes
first, it stays uncommitted for the queue's next owner.

`reconsume_later` gives a message back. A listener is done with what it got when it returns, and gives it back when it
raises. What becomes of what was given back stands in `returns`.

Answers to `DefaultMQPushConsumer` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from rucola.client.background_tasks import BackgroundTasks
from rucola.client.clock import monotonic_ms, now_ms
from rucola.client.consumer.assigned_queue import AssignedQueue, Delivery
from rucola.client.consumer.assignment import Assignment, StartOffsets
from rucola.client.consumer.dispatcher import Dispatcher, InFlightDeliveries
from rucola.client.consumer.fetcher import Fetcher
from rucola.client.consumer.listener import BatchListener, Listener, ListenerAdapter, is_addressed_to
from rucola.client.consumer.offset_store import BrokerOffsetStore, LocalOffsetStore, OffsetStore
from rucola.client.consumer.options import ConsumeOptions
from rucola.client.consumer.pull_consumer import PullConsumer
from rucola.client.consumer.queue_locks import QueueLocks
from rucola.client.consumer.ready_queue import ReadyQueue
from rucola.client.consumer.retry import RetryPolicy
from rucola.client.instance import ClientInstance, GroupClient
from rucola.client.lifecycle import run_close_steps
from rucola.client.route import TopicRoute
from rucola.client.stats import ConsumeCounters, ConsumerStats
from rucola.errors import ConfigError
from rucola.message import MessageExt
from rucola.message.topics import check_topic, retry_topic
from rucola.protocol.command import VERSION_TEXT
from rucola.protocol.connections import (
    CR_SUCCESS,
    CR_THROW_EXCEPTION,
    ConsumeMessageDirectlyResult,
    ConsumeStatus,
    ProcessQueueInfo,
)
from rucola.protocol.heartbeat import SUB_ALL, ConsumerData, SubscriptionData, subscription
from rucola.protocol.queue import MessageQueue
from rucola.rates import SAMPLE_INTERVAL_MS

logger = logging.getLogger(__name__)

PERSIST_INTERVAL_MS = 5000
CLOSE_GRACE_MS = 10_000
JOIN_TIMEOUT_MS = 1000
"""How long `open` waits for brokers to hear of a new member; one that hangs is told later."""
TAG = "TAG"
SQL92 = "SQL92"
BROADCASTING_INSTANCE = "DEFAULT"
"""The instance name of a client that broadcasts, so that it finds its offsets again when it is started again."""


class PushConsumer(GroupClient):
    """Consumes topics for a group.

        consumer = PushConsumer("group", "host:9876")
        consumer.subscribe("Flights", "UA || DL")
        async with consumer:
            async for message in consumer:
                ...

    `options` are the fields of ConsumeOptions. Once open, the member has its first share of queues. In broadcasting,
    members of one group on one machine need an `instance` each, with a client id of its own that stays the same.
    """

    def __init__(
        self, group: str, namesrv: str | None = None, *, instance: ClientInstance | None = None, **options: Any
    ) -> None:
        self.options = ConsumeOptions(**options)
        broadcasting = self.options.broadcasting
        super().__init__(group, namesrv, instance, BROADCASTING_INSTANCE if broadcasting else None)
        self._retry_topic = retry_topic(group)
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._call: ListenerAdapter | None = None
        self._iterations = 0
        self._in_iterations: dict[int, Delivery] = {}
        """Deliveries that iterations have in hand, by the id of the message."""
        self._left: dict[int, Delivery] = {}
        """Deliveries that iterations have left and that were requeued, until they are taken again or settled."""
        self._background = BackgroundTasks()
        self._pulls = PullConsumer(group, instance=self.instance)
        self._locks = QueueLocks(group, self.instance) if self.options.orderly and not broadcasting else None
        self._line = ReadyQueue(in_order=self.options.orderly, may_take=self._may_take)
        offsets: OffsetStore = BrokerOffsetStore(self._pulls, in_order=self.options.orderly)
        if broadcasting:
            offsets = LocalOffsetStore(self.options.offsets_root, self.instance.client_id, group)
        else:
            self.subscribe(self._retry_topic)
        self._offsets = offsets
        self._counts = ConsumeCounters()
        self._pulling = Fetcher(
            self._pulls,
            self._subscriptions,
            self._line,
            offsets,
            self._background,
            self._counts,
            self.options.pull_batch_size,
        )
        self._share = Assignment(
            group,
            self.instance,
            self._subscriptions,
            self.options,
            StartOffsets(self._pulls, offsets, self._retry_topic, self.options),
            offsets,
            self._pulling,
            self._line,
            self._locks,
            self._background,
        )
        self._returns = RetryPolicy(group, self.instance, self._line, self._background, self.options)
        self._in_hand = InFlightDeliveries(self._returns, self._counts, self.options.consume_timeout_ms)
        self._listening = Dispatcher(
            group, self._line, self._in_hand, self._returns, self.options, on_stranded=self._close_stranded
        )

    # What an application calls.

    def subscribe(self, topic: str, expression: str = SUB_ALL, expression_type: str = TAG) -> None:
        """Consume the topic's messages with one of the tags in `expression` ("TagA || TagB"), or all by "*".

        With `expression_type` "SQL92" the expression is one on the messages' properties, such as "weight > 10 AND
        colour = 'red'", and brokers need enablePropertyFilter. Takes the place of an earlier subscription of the topic,
        which may come into being later. All members of a group must subscribe alike. InvalidMessage, ConfigError.
        """
        self._check_caller()
        check_topic(topic)
        if expression_type not in (TAG, SQL92):
            raise ConfigError(f"expression_type is {expression_type!r}: it must be {TAG} or {SQL92}")
        if expression_type == SQL92:
            # The grammar costs start-up time and memory that only those pay who filter with it.
            from rucola.message import sql92

            sql92.compile(expression)
        self._subscriptions[topic] = subscription(topic, expression, expression_type, now_ms())
        self._subscriptions_changed()

    def unsubscribe(self, topic: str) -> None:
        """Consume the topic no more."""
        self._check_caller()
        if self._subscriptions.pop(topic, None) is not None:
            self._subscriptions_changed()

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """This member's share at the moment, the retry topic's queue not counted."""
        return frozenset(queue for queue in self._share.queues if queue.topic != self._retry_topic)

    async def rebalanced(self) -> None:
        """Wait until the share was next looked at; afterwards `queues` may be the same or another."""
        await self._share.rebalanced()

    def listen(self, listener: Listener) -> None:
        """Call `listener` with each message; one that raises gives the message back.

        ConfigError if the consumer has a listener, or iterates.
        """
        self._listen(ListenerAdapter(listener, None))

    def listen_to_batches(self, listener: BatchListener, max_count: int) -> None:
        """Call `listener` with up to `max_count` messages of one queue that wait, in their order, as a list.

        They are done, or given back, together, unless it raises `ReconsumeLater` with an index. `max_count` is
        Apache's consumeMessageBatchMaxSize; no call waits for a batch to become full.
        """
        self._listen(ListenerAdapter(listener, max_count))

    def suspend(self) -> None:
        """Pull nothing more until `resume`; what has been pulled is still delivered. The share stays."""
        self._check_caller()
        self._pulling.suspend()

    def resume(self) -> None:
        """Go on after `suspend`."""
        self._check_caller()
        self._pulling.resume()

    def __aiter__(self) -> AsyncGenerator[MessageExt, None]:
        return self.messages()

    async def messages(self, idle_timeout_ms: float | None = None) -> AsyncGenerator[MessageExt, None]:
        """Messages as they come, until the consumer is closed, or until none came for `idle_timeout_ms`.

        Requesting the next message acknowledges the one before. A message in hand when the loop is left is not done:
        the next iteration begins with it. Several iterations share the messages.

        Python closes a generator that a loop has left as soon as nothing refers to it. Keep none that is not iterated
        to its end, or close it (`contextlib.aclosing`): until then its message is in hand.

        ConfigError if the consumer has a listener, RemotingError if it was never opened.
        """
        if self._call is not None:
            raise ConfigError(f"the consumer of group {self.group} has a listener, which gets its messages")
        if not self.was_opened:
            self._must_be_open()
        self._check_caller()
        self._iterations += 1
        try:
            for _ in range(2):
                await asyncio.sleep(0)  # the loop closes generators that were left; their messages come first
            while (delivery := await self._next(idle_timeout_ms)) is not None:
                message = delivery.messages[0]
                self._in_iterations[id(message)] = delivery
                self._left.pop(id(message), None)
                self._in_hand.take(delivery)
                try:
                    yield message
                except BaseException:
                    self._left_in_hand(message)
                    raise
                self._ack(message)
        finally:
            self._iterations -= 1

    def ack(self, message: MessageExt) -> None:
        """The message, which an iteration gave out, is done. Once more, or after it was given back: no effect."""
        self._check_caller()
        self._ack(message)

    async def reconsume_later(self, message: MessageExt, delay_level: int = 0) -> None:
        """Give back a message that an iteration gave out: it comes again later, see `rucola.client.consumer.retry`.

        `delay_level` 0 lets the broker choose, longer each time; -1 sends it to the dead letter queue at once.
        """
        self._check_caller()
        if (delivery := self._settle(message)) is not None:
            self._in_hand.leave(delivery, 0)
            await self._returns.take_back(delivery, delay_level)

    def stats(self) -> dict[str, ConsumerStats]:
        """What was counted since the consumer was made, by topic, see `rucola.client.stats`."""
        held = self._share.held()
        return {
            topic: self._counts.view(topic, *held.get(topic, (0, 0)))
            for topic in dict.fromkeys([*self._counts.topics(), *held])
        }

    # Coming and going.

    async def _join(self) -> None:
        await self._offsets.open()
        self._line.open()
        await self._pulls.open()
        self.instance.add_consumer(self)
        await self.instance.routes.find_all(self._subscriptions)
        await self.instance.beat(JOIN_TIMEOUT_MS)
        await self._share.open()
        self._background.start(self._keep_persisting(), f"offsets of {self.group}")
        self._background.start(self._keep_sampling(), f"statistics of {self.group}")
        if not self.options.orderly:
            self._background.start(self._in_hand.watch(), f"timeouts of {self.group}")
        if self._locks is not None:
            self._background.start(self._locks.keep(), f"locks of {self.group}")
        if self._call is not None:
            self._listening.start(self._call)

    async def _leave(self) -> None:
        self._line.close()
        await run_close_steps(
            lambda: self._listening.close(CLOSE_GRACE_MS),
            self._background.close,
            self._share.close,
            lambda: self.instance.remove_consumer(self),
            self._pulls.close,
        )

    def _runs(self, task: asyncio.Task[Any] | None) -> bool:
        return self._listening.runs(task) or task in self._background

    def _listen(self, call: ListenerAdapter) -> None:
        self._check_caller()
        if self._call is not None:
            raise ConfigError(f"the consumer of group {self.group} has a listener already; a consumer has one")
        if self._iterations:
            raise ConfigError(f"the consumer of group {self.group} iterates over messages: end that before it listens")
        self._call = call
        if self.is_open:
            self._listening.start(call)

    def _close_stranded(self) -> None:
        """Leave the group: the listener cannot be called any more, though other threads keep the process alive."""
        if self.is_open:
            logger.warning("group %s: the main thread has ended, so that no thread takes calls: closing", self.group)
            self._background.start(self.close(), f"closing of {self._title}")

    def _check_caller(self) -> None:
        """An open consumer is used on its own event loop alone: MQError on any other, and in a fork."""
        if self.is_open:
            self._must_belong_here()

    async def _next(self, idle_timeout_ms: float | None) -> Delivery | None:
        """The next message for an iteration; None if the consumer is closed, or if none came in time."""
        if (delivery := self._line.take_now()) is not None:
            return delivery
        try:
            async with asyncio.timeout(None if idle_timeout_ms is None else idle_timeout_ms / 1000):
                return await self._line.take()
        except TimeoutError:
            return None

    def _ack(self, message: MessageExt) -> None:
        if (delivery := self._settle(message)) is not None:
            self._in_hand.leave(delivery, 1)
            delivery.done()
            self._line.leave(delivery)

    def _may_take(self, own: AssignedQueue) -> bool:
        return self._share.may_take(own)

    def _settle(self, message: MessageExt) -> Delivery | None:
        """Return the delivery of a message to settle; None if it is settled already or was delivered again."""
        delivery = self._in_iterations.pop(id(message), None)
        if delivery is None and (delivery := self._left.pop(id(message), None)) is not None:
            if not self._line.take_again(delivery):
                return None
            self._in_hand.take(delivery)
        return delivery

    def _left_in_hand(self, message: MessageExt) -> None:
        """Requeue the message of an iteration that ended without settling it."""
        if (delivery := self._in_iterations.pop(id(message), None)) is not None and self._in_hand.leave(delivery, None):
            self._line.requeue(delivery)
            self._left[id(message)] = delivery
            self._left = {key: left for key, left in self._left.items() if left.not_done}

    def _subscriptions_changed(self) -> None:
        async def announce() -> None:
            await self.instance.beat()
            self._share.rebalance_soon()

        if self.is_open:
            self._background.start(announce(), f"subscriptions of {self.group}")

    async def _keep_persisting(self) -> None:
        while True:
            await asyncio.sleep(PERSIST_INTERVAL_MS / 1000)
            await self._share.commit()

    async def _keep_sampling(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_INTERVAL_MS / 1000)
            self._counts.sample()

    # What the instance asks and tells.

    def consumer_data(self) -> ConsumerData:
        """The group as heartbeats describe it."""
        return ConsumerData(
            consume_from_where=self.options.consume_from.value,
            group_name=self.group,
            message_model=self.options.message_model.value,
            subscription_data_set=list(self._subscriptions.values()),
        )

    def members_changed(self) -> None:
        """Rebalance now."""
        self._share.rebalance_soon()

    def route_changed(self, route: TopicRoute) -> None:
        """Rebalance now, if the topic is one of ours."""
        if route.topic in self._subscriptions:
            self._share.rebalance_soon()

    # What operators ask, see `operator`.

    def settings(self) -> dict[str, str]:
        """The settings of the consumer, by Apache's names."""
        options = self.options
        limit = options.max_reconsume_times
        return {
            "PROP_CLIENT_VERSION": VERSION_TEXT,
            "PROP_CONSUMEORDERLY": str(options.orderly).lower(),
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_NAMESERVER_ADDR": ";".join(self.instance.name_servers.addresses),
            "PROP_THREADPOOL_CORE_SIZE": str(options.concurrency),
            "consumeFromWhere": options.consume_from.value,
            "consumeMessageBatchMaxSize": str(self._call.max_count if self._call else 1),
            "consumerGroup": self.group,
            "maxReconsumeTimes": "-1" if limit is None else str(limit),
            "messageModel": options.message_model.value,
            "pullBatchSize": str(options.pull_batch_size),
            "pullThresholdForQueue": str(options.limits.count),
        }

    def held(self) -> dict[MessageQueue, ProcessQueueInfo]:
        """What is held of each own queue."""
        age_ms = self._locks.age_ms if self._locks is not None else lambda queue: None
        return {queue: own.info(age_ms(queue)) for queue, own in sorted(self._share.queues.items())}

    def status(self) -> dict[str, ConsumeStatus]:
        """How fast each subscribed topic is consumed."""
        return {topic: self._counts.status(topic) for topic in self._subscriptions}

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Begin anew at these offsets in those of the queues that are own, and commit them.

        What was pulled before and is not done by then is not given out, or, once given out, commits nothing.
        """
        await self._share.begin_anew(offsets)

    async def consume_directly(self, message: MessageExt) -> ConsumeMessageDirectlyResult:
        """Give the message to the listener now. ConfigError if the application iterates instead, or is closing."""
        if not self.is_open:
            raise ConfigError(f"the consumer of group {self.group} is closing")
        if self._call is None:
            raise ConfigError(f"the consumer of group {self.group} iterates over messages, it has no listener to call")
        self._pulling.restore_topic(message)
        begin_ms = monotonic_ms()
        remark = None
        try:
            await self._listening.call(self._call, [message])
        except BaseException as error:
            if is_addressed_to(asyncio.current_task(), error):
                raise
            logger.warning("group %s: the listener failed on message %s", self.group, message.msg_id, exc_info=error)
            remark = f"{type(error).__name__}: {error}"
        return ConsumeMessageDirectlyResult(
            consume_result=CR_SUCCESS if remark is None else CR_THROW_EXCEPTION,
            order=self.options.orderly,
            remark=remark,
            spent_time_mills=monotonic_ms() - begin_ms,
        )
