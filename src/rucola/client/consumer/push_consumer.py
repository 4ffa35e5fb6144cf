"""PushConsumer: delivers messages to the application, and shares queues with other members of its group.

    assignment      the queues that are assigned to this member, see `assignment` and `allocation`
    fetcher         one task per assigned queue pulls; the broker holds the request until a message arrives
    ready queue     messages wait, in queue order, with the queues in rotation
    delivery        to an iteration (`async for`), or by the dispatcher to a listener, in several calls at a time
    completion      advances the queue's commit offset, which is committed every 5 s, with pulls, and by `close`

Delivery is at least once: messages that are not completed before the consumer closes, or before their queue is revoked,
are delivered again. Concurrently, many messages of one queue are in flight at a time; in order (`orderly`), at most one
delivery of a queue in the whole group. With clustering one member gets each message, with broadcasting all.

Corresponds to `DefaultMQPushConsumer` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from numbers import Real
from typing import Any, Generic, Unpack

from rucola.acl.credentials import Credentials
from rucola.client.arguments import check_number, check_received, options_of
from rucola.client.background_tasks import BackgroundTasks
from rucola.client.clock import now_ms
from rucola.client.connection_options import ConnectionOptions
from rucola.client.consumer.acknowledgements import Acknowledgements
from rucola.client.consumer.assigned_queue import AssignedQueue
from rucola.client.consumer.assignment import Assignment
from rucola.client.consumer.context import ConsumerContext
from rucola.client.consumer.dispatcher import Dispatcher
from rucola.client.consumer.fetcher import Fetcher, PullFetcher
from rucola.client.consumer.in_flight_deliveries import InFlightDeliveries
from rucola.client.consumer.iteration import Iterations
from rucola.client.consumer.listener import BatchListener, Listener, ListenerAdapter
from rucola.client.consumer.offset_store import BrokerOffsetStore, LocalOffsetStore, OffsetStore
from rucola.client.consumer.operations import ConsumerOperations
from rucola.client.consumer.options import ConsumeKeywords, ConsumeOptions
from rucola.client.consumer.pop_fetcher import PopFetcher, PopReadyQueue, PopRetry
from rucola.client.consumer.pop_requests import PopRequests
from rucola.client.consumer.pull_consumer import PullConsumer
from rucola.client.consumer.queue_locks import QueueLocks
from rucola.client.consumer.ready_queue import ReadyQueue
from rucola.client.consumer.retry import ConsumeRetry
from rucola.client.consumer.start_offsets import StartOffsets
from rucola.client.group_client import GroupClient, GroupClientKeywords
from rucola.client.instance import ClientInstance
from rucola.client.lifecycle import run_close_steps
from rucola.client.route import TopicRoute
from rucola.client.stats import ConsumeCounters, ConsumerStats
from rucola.client.values import Values
from rucola.domain.queue import MessageQueue
from rucola.domain.subscription import SUB_ALL, subscription
from rucola.errors import ConfigError
from rucola.message.message import MessageExt, V
from rucola.message.topics import check_tags, check_topic
from rucola.rates import SAMPLE_INTERVAL_MS
from rucola.remoting.tls import ClientTls

logger = logging.getLogger(__name__)

PERSIST_INTERVAL_MS = 5000
CLOSE_GRACE_MS = 10_000
"""How long `close` waits for running calls of the listener."""
JOIN_TIMEOUT_MS = 1000
"""How long `open` waits for brokers to register the member; a hanging one does so with a later heartbeat."""
TAG = "TAG"
SQL92 = "SQL92"
BROADCASTING_INSTANCE = "DEFAULT"
"""The instance name of a broadcasting consumer: a fixed one, to find its offset file after a restart."""


class PushConsumerArguments(GroupClientKeywords, ConsumeKeywords[V], total=False):
    """The keyword arguments of a PushConsumer."""


class PushConsumer(GroupClient, Generic[V]):
    """Consumes topics for a group.

        consumer = PushConsumer("group", "host:9876")
        consumer.subscribe("Flights", "UA || DL")
        async with consumer:
            async for message in consumer:
                ...

    `namesrv`, `tls` and `credentials` are documented in ConnectionOptions, `options` in ConsumeOptions. When `open`
    returns, the member has its first assignment. With `value=Order` it is a `PushConsumer[Order]`, whose messages are
    `MessageExt[Order]`. With broadcasting, several members of a group on one machine
    each need an `instance` with a fixed client id.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | ConnectionOptions | None = None,
        *,
        instance: ClientInstance | None = None,
        tls: ClientTls | None = None,
        credentials: Credentials | None = None,
        **options: Unpack[ConsumeKeywords[V]],
    ) -> None:
        self.options = options_of(ConsumeOptions, options, type(self).__name__)
        broadcasting, orderly = self.options.broadcasting, self.options.orderly
        instance_name = BROADCASTING_INSTANCE if broadcasting else None
        super().__init__(group, namesrv, instance, instance_name=instance_name, tls=tls, credentials=credentials)
        self._background = BackgroundTasks()
        self._context = context = ConsumerContext(group, self.instance, self.options, self._background, {})
        self._counters = ConsumeCounters()
        # 1. Offsets and locks.
        self._pull_consumer = PullConsumer(group, instance=self.instance)
        requests = PopRequests(group, self.instance)
        acknowledgements = Acknowledgements(context, requests)
        self._offset_store: OffsetStore = BrokerOffsetStore(self._pull_consumer, in_order=orderly)
        if self.options.pop:
            self._offset_store = acknowledgements
        elif broadcasting:
            self._offset_store = LocalOffsetStore(
                self.options.offsets_root,
                self.instance.client_id,
                group,
                discard_damaged=self.options.discard_damaged_offsets,
            )
        self._locks = QueueLocks(group, self.instance) if self.options.takes_locks else None
        # 2. From assignment to ready queue.
        ready_queue = PopReadyQueue if self.options.pop else ReadyQueue
        self._ready_queue = ready_queue(in_order=orderly, can_deliver=self._can_deliver)
        retry = ConsumeRetry(context, self._ready_queue)
        self._fetcher: Fetcher
        if self.options.pop:
            retry = PopRetry(context, self._ready_queue, acknowledgements)
            self._fetcher = PopFetcher(context, self._ready_queue, self._counters, requests, acknowledgements)
        else:
            self._fetcher = PullFetcher(
                context, self._ready_queue, self._counters, self._pull_consumer, self._offset_store
            )
        start_offsets = StartOffsets(context, self._pull_consumer, self._offset_store)
        self._assignment = Assignment(
            context, start_offsets, self._offset_store, self._fetcher, self._ready_queue, self._locks
        )
        # 3. Delivery and retry.
        self._in_flight = InFlightDeliveries(retry, self._counters, self.options.consume_timeout_ms)
        values = Values(self.options.value)
        self._iterations = Iterations(self._ready_queue, self._in_flight, retry, values)
        self._dispatcher = Dispatcher(context, self._ready_queue, self._in_flight, retry, values)
        # 4. Operators.
        self.operations = ConsumerOperations(
            context, self._assignment, self._locks, self._dispatcher, self._counters, lambda: self.is_open
        )
        if not broadcasting and not self.options.pop:
            self.subscribe(context.retry_topic)

    # Subscriptions and assignment.

    def subscribe(self, topic: str, expression: str = SUB_ALL, expression_type: str = TAG) -> None:
        """Subscribe to a topic's messages with one of the tags in `expression`: "TagA || TagB", or "*" for all.

        With `expression_type` "SQL92" the expression is over properties, such as "weight > 10 AND colour = 'red'", and
        brokers need enablePropertyFilter. Replaces an earlier subscription to the topic, which need not exist yet. All
        members of a group must have the same subscriptions. InvalidMessage, ConfigError.
        """
        self._check_caller()
        check_topic(topic)
        if expression_type not in (TAG, SQL92):
            raise ConfigError(f"expression_type is {expression_type!r}: it must be {TAG} or {SQL92}")
        if expression_type == TAG:
            check_tags(expression)
        if expression_type == SQL92:
            # Imported here because the grammar costs start-up time and memory, which other programs need not pay.
            from rucola.message import sql92

            sql92.compile(expression)
        self._context.subscriptions[topic] = subscription(topic, expression, expression_type, now_ms())
        self._subscriptions_changed()

    def unsubscribe(self, topic: str) -> None:
        """Cancel the subscription to a topic."""
        self._check_caller()
        if self._context.subscriptions.pop(topic, None) is not None:
            self._subscriptions_changed()

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """The queues that are assigned to this member now, except for the retry topic's."""
        retry_topic = self._context.retry_topic
        return frozenset(queue for queue in self._assignment.queues if queue.topic != retry_topic)

    async def rebalanced(self) -> None:
        """Wait until the next rebalance ends, which may or may not change `queues`."""
        await self._assignment.rebalanced()

    def suspend(self) -> None:
        """Stop pulling until `resume`; messages that were pulled are still delivered. The assignment stays."""
        self._check_caller()
        self._fetcher.suspend()

    def resume(self) -> None:
        """Resume pulling after `suspend`."""
        self._check_caller()
        self._fetcher.resume()

    # Delivery.

    def listen(self, listener: Listener[V]) -> None:
        """Call `listener` with each message; if it raises, the message is retried.

        A listener with an attribute `clustering_group`, such as of `rucola.reliable.idempotent`, needs that group and
        its retries. ConfigError if this consumer is of another group or broadcasts, or is already consumed.
        """
        if (group := getattr(listener, "clustering_group", self.group)) != self.group:
            raise ConfigError(f"the listener is one of group {group}, and the consumer is of group {self.group}")
        if self.options.broadcasting and hasattr(listener, "clustering_group"):
            raise ConfigError(
                f"the listener of group {self.group} needs a clustering consumer: with broadcasting, failed messages "
                "are not delivered again, and each member would have to have the effect"
            )
        self._set_listener(ListenerAdapter(listener, None))

    def listen_to_batches(self, listener: BatchListener[V], max_count: int) -> None:
        """Call `listener` with lists of up to `max_count` messages of one queue, in order.

        They are completed or retried together, unless the listener raises `ReconsumeLater` with an index. `max_count`
        is Apache's consumeMessageBatchMaxSize; a call never waits for a full batch.
        """
        self._set_listener(ListenerAdapter(listener, max_count))

    def __aiter__(self) -> AsyncGenerator[MessageExt[V], None]:
        return self.messages()

    def messages(self, idle_timeout_ms: float | None = None) -> AsyncGenerator[MessageExt[V], None]:
        """Iterate over messages until the consumer is closed, or until none has arrived for `idle_timeout_ms`.

        Requesting the next message acknowledges the one before. A message in flight when the loop ends is not
        acknowledged: the next iteration starts with it. Several iterations share the messages.

        A program that keeps a reference to the generator after its loop must close it (`contextlib.aclosing`); until
        then its message stays in flight. When iterated, it raises ConfigError if the consumer has a listener, and
        RemotingError if it was never opened.
        """
        if idle_timeout_ms is not None:
            check_number("idle_timeout_ms", idle_timeout_ms, Real)
        return self._iterations.messages(self._check_iterable, idle_timeout_ms)

    def ack(self, message: MessageExt) -> None:
        """Acknowledge a message of an iteration, which completes it. No effect if it was acknowledged or retried."""
        self._check_caller()
        check_received(message)
        self._iterations.ack(message)

    async def reconsume_later(self, message: MessageExt, delay_level: int = 0) -> None:
        """Have a message of an iteration retried, see `rucola.client.consumer.retry`.

        `delay_level` 0 lets the broker choose a growing delay; -1 selects the dead letter queue.
        """
        self._check_caller()
        check_received(message)
        await self._iterations.reconsume_later(message, delay_level)

    def stats(self) -> dict[str, ConsumerStats]:
        """Return the totals since the consumer was made, by topic, see `rucola.client.stats`."""
        held = self._assignment.held_by_topic()
        return {
            topic: self._counters.snapshot(topic, *held.get(topic, (0, 0)))
            for topic in dict.fromkeys([*self._counters.topics(), *held])
        }

    # Opening and closing.

    async def _join(self) -> None:
        if self._dispatcher.listener is not None:
            self._check_subscribed()
        # 1. Prepare everything that may fail.
        await self._offset_store.open()
        self._ready_queue.open()
        self._fetcher.open()
        await self._pull_consumer.open()
        # 2. Become a member: brokers must know it before a rebalance can allocate queues to it.
        self.instance.add_consumer(self)
        await self.instance.routes.find_all(self._context.subscriptions)
        await self.instance.send_heartbeats(JOIN_TIMEOUT_MS)
        # 3. Consume.
        await self._assignment.open()
        self._background.start(self._commit_loop(), f"offsets of {self.group}")
        self._background.start(self._sample_loop(), f"statistics of {self.group}")
        if not self.options.orderly and not self.options.pop:
            self._background.start(self._in_flight.watch_timeouts(), f"timeouts of {self.group}")
        if self._locks is not None:
            self._background.start(self._locks.renew_periodically(), f"locks of {self.group}")
        self._dispatcher.start()

    async def _leave(self) -> None:
        self._ready_queue.close()
        if left := self._iterations.unacknowledged():
            logger.warning(
                "group %s: closing with unacknowledged messages of an iteration (%d, the first with offset %d of %s), "
                "which the group receives again; call ack(message) before leaving the loop by break",
                self.group, len(left), left[0].queue_offset, left[0].topic,
            )  # fmt: skip
        self._fetcher.close()
        await run_close_steps(
            lambda: self._dispatcher.close(CLOSE_GRACE_MS),
            # Brokers must not give messages to a receive that is cancelled.
            *([lambda: self.instance.remove_consumer(self)] if self.options.pop else []),
            self._background.close,
            self._assignment.close,
            lambda: self.instance.remove_consumer(self),
            self._pull_consumer.close,
        )

    def _owns_task(self, task: asyncio.Task[Any] | None) -> bool:
        return self._dispatcher.owns_task(task) or task in self._background

    async def _commit_loop(self) -> None:
        while True:
            await asyncio.sleep(PERSIST_INTERVAL_MS / 1000)
            await self._assignment.commit()

    async def _sample_loop(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_INTERVAL_MS / 1000)
            self._counters.sample()

    # Events of the instance.

    def members_changed(self) -> None:
        self._assignment.rebalance_soon()

    def route_changed(self, route: TopicRoute) -> None:
        if route.topic in self._context.subscriptions:
            self._assignment.rebalance_soon()

    def _subscriptions_changed(self) -> None:
        async def announce() -> None:
            await self.instance.send_heartbeats()
            self._assignment.rebalance_soon()

        if self.is_open:
            self._background.start(announce(), f"subscriptions of {self.group}")

    # Checks.

    def _set_listener(self, listener: ListenerAdapter) -> None:
        self._check_caller()
        if self._dispatcher.listener is not None:
            raise ConfigError(f"the consumer of group {self.group} has a listener already; a consumer has one")
        if listener.takes_list and self.options.value is not None:
            # One invalid body would fail its whole batch, and valid messages would become dead letters with it.
            raise ConfigError("a consumer with the option `value` takes no batch listener: decode in that one")
        if self._iterations.count:
            raise ConfigError(f"the consumer of group {self.group} iterates over messages: end that before it listens")
        if not self.is_open:
            self._dispatcher.listener = listener
            return
        self._check_subscribed()
        self._dispatcher.listener = listener
        self._dispatcher.start()

    def _check_iterable(self) -> None:
        if self._dispatcher.listener is not None:
            raise ConfigError(f"the consumer of group {self.group} has a listener, which gets its messages")
        if not self.was_opened:
            self._check_open()
        self._check_caller()
        self._check_subscribed()

    def _check_subscribed(self) -> None:
        if self._context.subscriptions.keys() <= {self._context.retry_topic}:
            raise ConfigError(
                f"group {self.group} has subscribed to nothing, so no message arrives: call subscribe(topic) first",
                subject="subscribe",
            )

    def _check_caller(self) -> None:
        if self.is_open:
            self._check_owner()

    def _can_deliver(self, assigned: AssignedQueue) -> bool:
        return self._assignment.can_deliver(assigned)
