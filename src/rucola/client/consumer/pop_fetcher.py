"""PopFetcher: receives messages by POP into the ready queue, with one task for each topic and broker.

In order, the messages of each message group in a receive wait in a queue of their own (`AssignedQueue.part`): the
broker delivers later ones of the group only after these.

Corresponds to `DefaultMQPushConsumerImpl.popMessage` of Apache RocketMQ 5. Deliberate differences: messages are
invisible for the time that a listener may take, so that none is renewed; a receive whose response was lost gets the
same messages again; a broker with more messages gets several receives at a time.
"""

from __future__ import annotations

import itertools
import uuid

from rucola.client.clock import now_ms, precise_monotonic_ms
from rucola.client.consumer.acknowledgements import Acknowledgements
from rucola.client.consumer.assigned_queue import AssignedQueue, Delivery
from rucola.client.consumer.context import ConsumerContext
from rucola.client.consumer.fetcher import SUSPEND_MS, Fetcher
from rucola.client.consumer.options import ConsumeFromWhere
from rucola.client.consumer.pop_process_queue import THRESHOLD, PopProcessQueue
from rucola.client.consumer.pop_requests import PopRequests, Received
from rucola.client.consumer.ready_queue import ReadyQueue
from rucola.client.consumer.retry import ConsumeRetry
from rucola.client.stats import ConsumeCounters
from rucola.domain.subscription import SubscriptionData
from rucola.errors import MQError
from rucola.message import MessageExt, properties
from rucola.message.delay import parse_delay_levels
from rucola.protocol.pop import BEGIN_AT_END, PopMessageRequestHeader

MAX_MESSAGES = 32
FIRST_DELAY_LEVEL = 3
_DELAYS_MS = parse_delay_levels()


class PopFetcher(Fetcher):
    def __init__(
        self,
        context: ConsumerContext,
        ready_queue: ReadyQueue,
        counters: ConsumeCounters,
        requests: PopRequests,
        acknowledgements: Acknowledgements,
    ) -> None:
        super().__init__(context, ready_queue, counters)
        self._requests = requests
        self._acknowledgements = acknowledgements
        self._member = uuid.uuid4().hex
        self._attempts = itertools.count()
        self._receiving: set[AssignedQueue] = set()

    def start(self, assigned: AssignedQueue) -> None:
        assigned.process_queue = PopProcessQueue(
            assigned.process_queue.limits,
            assigned.read_ahead,
            self._acknowledgements.add,
            max(THRESHOLD, 2 * self._context.options.concurrency),
        )
        super().start(assigned)

    def release(self, assigned: AssignedQueue) -> None:
        if isinstance(process_queue := assigned.process_queue, PopProcessQueue):
            self._acknowledgements.give_back(process_queue.give_up_waiting())

    def _cancel(self, assigned: AssignedQueue) -> None:
        # The response to a receive may have messages.
        if assigned not in self._receiving:
            super()._cancel(assigned)

    async def _fetch(self, assigned: AssignedQueue) -> None:
        topic, process_queue = assigned.queue.topic, assigned.process_queue
        assert isinstance(process_queue, PopProcessQueue)
        rest, attempts = 0, list[str]()
        while True:
            await self._wait_for_capacity(assigned)
            if (subscription := self._context.subscriptions.get(topic)) is None:
                return
            # While the broker has more, several at a time that do not wait; otherwise one that waits.
            room = process_queue.room
            size = min(self._context.options.pull_batch_size, MAX_MESSAGES, room)
            count = 1 if self._context.options.orderly else max(1, min(room, rest) // size)
            attempts += [f"{self._member}-{next(self._attempts)}" for _ in range(count - len(attempts))]
            wait_ms = SUSPEND_MS if count == 1 else 0
            headers = [self._header(subscription, size, wait_ms, attempt_id) for attempt_id in attempts[:count]]
            assigned.pulled_ms, begin_ms = now_ms(), precise_monotonic_ms()
            self._receiving.add(assigned)
            try:
                outcomes = await self._requests.pop(assigned.queue.broker_name, headers)
            except MQError as error:
                outcomes = [error] * count
            finally:
                self._receiving.discard(assigned)
            received = [one for one in outcomes if isinstance(one, Received)]
            if assigned.is_revoked:
                for one in received:
                    offsets = [message.queue_offset for message in one.messages]
                    self._acknowledgements.give_back(zip(one.held, offsets, strict=True))
                await self._acknowledgements.commit()
                return
            for one in received:
                self._succeeded(assigned, one.messages, begin_ms)
                self._add(assigned, process_queue, subscription, one)
                rest = one.rest
            # A receive that failed may have taken messages, which its attempt id gets again.
            failed = [one for one in zip(attempts, outcomes, strict=False) if isinstance(one[1], MQError)]
            attempts = [attempt_id for attempt_id, _ in failed] + attempts[count:]
            for _, failure in failed[:1]:
                assert isinstance(failure, MQError)
                await self._failed(assigned, failure)

    def _add(
        self,
        assigned: AssignedQueue,
        process_queue: PopProcessQueue,
        subscription: SubscriptionData,
        received: Received,
    ) -> None:
        messages = received.messages
        process_queue.receive(received)
        if subscription.tags_set:
            # The broker compares hashes.
            for message in messages:
                if message.tags not in subscription.tags_set:
                    process_queue.complete(message)
            messages = [message for message in messages if process_queue.holds(message)]
        if self._context.options.orderly:
            for group in _message_groups(messages):
                self._ready_queue.put(assigned.part(), group)
        else:
            self._ready_queue.put(assigned, messages)

    def _header(
        self, subscription: SubscriptionData, size: int, wait_ms: int, attempt_id: str
    ) -> PopMessageRequestHeader:
        options = self._context.options
        begins_at_end = options.consume_from is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        return PopMessageRequestHeader(
            consumer_group=self._context.group,
            topic=subscription.topic,
            queue_id=-1,
            max_msg_nums=size,
            invisible_time=int(options.consume_timeout_ms),
            poll_time=wait_ms,
            born_time=now_ms(),
            init_mode=BEGIN_AT_END if begins_at_end else 0,
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
            order=options.orderly,
            attempt_id=attempt_id,
            client_id=self._context.instance.client_id,
        )


class PopReadyQueue(ReadyQueue):
    """The waiting messages that are still held."""

    def get_nowait(self, max_count: int = 1) -> Delivery | None:
        while (delivery := super().get_nowait(max_count)) is not None:
            process_queue = delivery.process_queue
            assert isinstance(process_queue, PopProcessQueue)
            delivery.messages = process_queue.start(delivery.messages)
            if delivery.messages:
                break
            self.complete(delivery)
        return delivery


class PopRetry(ConsumeRetry):
    """Retries by a change of the invisible time. The broker counts the attempts, and moves dead letters."""

    def __init__(self, context: ConsumerContext, ready_queue: ReadyQueue, acknowledgements: Acknowledgements) -> None:
        super().__init__(context, ready_queue)
        self._acknowledgements = acknowledgements

    async def _retry_by_broker(self, delivery: Delivery, message: MessageExt, delay_level: int) -> None:
        if delay_level < 0 and await self._send_back(delivery.assigned.queue, message, delay_level):
            delivery.complete([message])
            return
        level = delay_level if delay_level > 0 else FIRST_DELAY_LEVEL + message.reconsume_times
        self._change_invisible(delivery, [message], _DELAYS_MS[min(level, len(_DELAYS_MS)) - 1])

    async def _requeue_in_order(self, delivery: Delivery, suspend_ms: float | None) -> None:
        """Return a delivery to the broker, and what follows it in its message group."""
        self._change_invisible(delivery, delivery.incomplete, int(self._suspension_ms(suspend_ms)))
        following, assigned = list(delivery.assigned.waiting), delivery.assigned
        assigned.waiting.clear()
        self._change_invisible(delivery, following, 0, suspend=True)
        self._ready_queue.complete(delivery)

    def _change_invisible(
        self, delivery: Delivery, messages: list[MessageExt], invisible_ms: int, *, suspend: bool = False
    ) -> None:
        process_queue = delivery.process_queue
        assert isinstance(process_queue, PopProcessQueue)
        for message in messages:
            if (held := process_queue.give_up(message)) is not None:
                self._acknowledgements.change_invisible(held, message.queue_offset, invisible_ms, suspend=suspend)
        delivery.check_capacity()


def _message_groups(messages: list[MessageExt]) -> list[list[MessageExt]]:
    """Return the messages of each message group."""
    groups: dict[tuple[int, str], list[MessageExt]] = {}
    for message in messages:
        key = message.queue_id, message.properties.get(properties.SHARDING_KEY, "")
        groups.setdefault(key, []).append(message)
    return list(groups.values())
