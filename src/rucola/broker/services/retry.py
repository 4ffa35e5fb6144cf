"""Retries: a message that a group failed to consume is stored again for that group.

It is put to `%RETRY%group` by way of a delay level, or into `%DLQ%group` if it was retried too often. It keeps its body
and properties and gains

    RETRY_TOPIC          its original topic, which consumers restore
    ORIGIN_MESSAGE_ID    the offsetMsgId of the message that was sent first
    reconsumeTimes       one more than before

A message whose properties leave no room for these is stored in `%DLQ%group` without them, with an error in the log. If
the put fails, the consumer gets an error, keeps the message and tries again.

Corresponds to `SendMessageProcessor.asyncConsumerSendMsgBack` of Apache RocketMQ 4.9.8. Deliberate differences: the
retry topic grows to retryQueueNums queues, where Apache puts messages into queues that no consumer reads; a group whose
retryQueueNums is 0 has one retry queue, where Apache answers SUCCESS and loses the message; a message that a crash has
taken from the log is refused, where Apache stores for the group whatever is at its physical offset now.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress

from rucola import refusals
from rucola.access import Caller, Check, Reason, Refused, Resource
from rucola.broker.delivery.delay import redirect_by_level
from rucola.broker.durability import Durability, Missing
from rucola.broker.retry_policy import FIRST_DELAY_LEVEL, dead_letter_queue, max_reconsume_times, next_attempt
from rucola.broker.services.requests import RetryRequest
from rucola.broker.state import BrokerState
from rucola.broker.stored_message import decoded, is_another, renewed
from rucola.domain.topic import TOPIC_FLAG_UNIT_SUB
from rucola.errors import InvalidMessage
from rucola.message import MessageExt, MessageInner, properties
from rucola.store.config import PutMessageStatus

logger = logging.getLogger(__name__)

DURABLE_S = 3.0
"""Clients wait 5 s for the answer."""


class RetryService:
    def __init__(self, state: BrokerState, durability: Durability, check_read: Check | None) -> None:
        self._state = state
        self._durability = durability
        self._check_read = check_read
        self._delay_level_count = state.delay_level_count

    async def retry(self, caller: Caller, request: RetryRequest) -> Callable[[], int]:
        """Return a function that stores a message for another attempt of its group, and returns the log's end then.

        Both raise Refused. Missing topics are created before: call it when they are on disk.
        """
        now_ms = self._state.clock()
        group = self._state.groups.find(request.group, now_ms)
        if group is None:
            raise Refused(refusals.SEND_BACK_GROUP_NOT_FOUND, group=request.group)
        # The retry topic is created before the message is found, so that its subscribers get a route in any case.
        topic_sys_flag = TOPIC_FLAG_UNIT_SUB if request.unit_mode else 0
        topic = self._state.topics.ensure_retry_topic(group, now_ms, topic_sys_flag)
        record = await self._state.tiered.record_at(request.physical_offset)
        try:
            message = decoded(record, request.physical_offset)
            if is_another(message, request.msg_id):
                raise InvalidMessage(f"it has {message.msg_id} now, not {request.msg_id}")
        except InvalidMessage as error:
            raise Refused(refusals.SEND_BACK_NOT_FOUND, physical_offset=request.physical_offset, why=error) from None
        # Without this, a consumer could copy any message of the log into its own retry topic.
        if self._check_read is not None:
            self._check_read(caller, Resource(message.topic))
        limit = max_reconsume_times(group, request.max_reconsume_times)
        is_dead = message.reconsume_times >= limit or request.delay_level < 0
        retry_queue = (topic.topic_name, random.randrange(max(1, group.retry_queue_nums)))  # noqa: S311 - spreads load
        attempt = self._next_attempt(message, request, None if is_dead else retry_queue, now_ms)
        origin = message.properties.get(properties.RETRY_TOPIC, message.topic)

        def put() -> int:
            result = self._state.puts.put("retry", attempt, self._state.clock())
            if result.status is not PutMessageStatus.PUT_OK:
                raise Refused(Reason.FAILED, self._state.puts.reason(result))
            self._state.stats.record_send_back(request.group, origin)
            return result.physical_offset + result.size

        return put

    async def wait_durable(self, end: int) -> None:
        """Wait until everything before `end` is durable, for DURABLE_S, or until it is known that it will not be.

        Without a slave, for example, an error would have the consumer store further copies. Raises Refused if the copy
        may be lost, since the store has failed or another broker may be master.
        """
        if not self._durability.must_wait:
            return
        outcome: asyncio.Future[Missing | None] = asyncio.get_running_loop().create_future()
        self._durability.when_durable(end, lambda missing: None if outcome.done() else outcome.set_result(missing))
        with suppress(TimeoutError):
            async with asyncio.timeout(DURABLE_S):
                missing = await outcome
                if missing is not None and not self._durability.may_acknowledge:
                    raise Refused(Reason.FAILED, missing[1])

    def _next_attempt(
        self,
        message: MessageExt,
        request: RetryRequest,
        retry_queue: tuple[str, int] | None,
        now_ms: int,
    ) -> MessageInner:
        attempt = next_attempt(message)
        pairs = attempt.properties
        if retry_queue is not None:
            pairs[properties.DELAY] = str(request.delay_level or FIRST_DELAY_LEVEL + message.reconsume_times)
            attempt.topic, attempt.queue_id = redirect_by_level(*retry_queue, pairs, self._delay_level_count)
        else:
            pairs[properties.DELAY] = "0"
            attempt.topic, attempt.queue_id = dead_letter_queue(self._state.topics, request.group, now_ms)
        try:
            return renewed(attempt)
        except InvalidMessage as error:
            attempt.topic, attempt.queue_id = dead_letter_queue(self._state.topics, request.group, now_ms)
            attempt.properties = message.properties
            logger.error(
                "the properties of message %s leave no room for a retry by group %s; it goes to %s: %s",
                message.msg_id, request.group, attempt.topic, error,
            )  # fmt: skip
            return renewed(attempt)
