"""Recall: a producer takes back a timer message that is not due yet.

The recall is published to the message's topic as a timer message with TIMER_DEL_UNIQKEY, which `delivery.timer` never
delivers. So it is as durable as a message, slaves have it, and it may be repeated.

Corresponds to `RecallMessageProcessor` of Apache RocketMQ 5. Deliberate difference: a message that no longer waits, or
never did, is refused; Apache answers SUCCESS.
"""

from __future__ import annotations

from rucola import refusals
from rucola.access import Caller, Refused
from rucola.broker.services.publish import PublishService
from rucola.broker.services.requests import PublishRequest
from rucola.broker.services.results import Published
from rucola.broker.state import BrokerState
from rucola.message import properties
from rucola.message.recall import parse_recall_handle


class RecallService:
    def __init__(self, state: BrokerState, publish: PublishService) -> None:
        self._broker_name = state.config.broker_name
        self._has_index = state.store.config.message_index_enable
        self._timers = state.timers
        self._clock = state.clock
        self._publish = publish

    def recall(self, caller: Caller, topic: str, text: str) -> tuple[str, Published]:
        """Recall the message of a handle; return its unique key, and the recall that was stored. Raises Refused."""
        handle = parse_recall_handle(text)
        if handle is None or (handle.topic, handle.broker_name) != (topic, self._broker_name):
            raise Refused(refusals.RECALL_HANDLE_ILLEGAL, handle=text[:64], topic=topic, broker=self._broker_name)
        if not self._has_index:
            raise Refused(refusals.RECALL_NEEDS_INDEX)
        now_ms, due_ms = self._clock(), handle.due_ms
        if due_ms <= now_ms:
            raise Refused(refusals.RECALL_TOO_LATE, due_ms=due_ms)
        if not self._timers.waits(topic, handle.unique_key, due_ms):
            raise Refused(refusals.RECALL_NOT_FOUND, topic=topic, unique_key=handle.unique_key, due_ms=due_ms)
        pairs = {properties.TIMER_DELIVER_MS: str(due_ms), properties.TIMER_DEL_UNIQKEY: handle.unique_key}
        recall = PublishRequest(topic, 0, b"0", properties.join(pairs), born_timestamp=now_ms)
        published = self._publish.publish(caller, recall)
        return handle.unique_key, published
