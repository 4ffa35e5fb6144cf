"""Giving a message back: CONSUMER_SEND_MSG_BACK (36).

The broker finds the message by its physical offset and puts it once more: into `%RETRY%group` after a delay, or into
`%DLQ%group` when it was tried too often or the consumer says so by a negative delay level. It keeps its body and
properties and gains

    RETRY_TOPIC          its own topic, which consumers put back in place
    ORIGIN_MESSAGE_ID    the offsetMsgId of the message that was sent first
    reconsumeTimes       one more than before

A message whose properties leave no room for these goes to `%DLQ%group` without them, and that is logged: it could never
be given back otherwise. If the put fails the consumer gets an error, keeps the message and tries again.

Answers to `SendMessageProcessor.asyncConsumerSendMsgBack` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import logging
import random
from dataclasses import replace

from rucola.broker.delivery.delay import redirect_by_level
from rucola.broker.retry_policy import FIRST_DELAY_LEVEL, dead_letter_place, max_reconsume_times
from rucola.broker.state import BrokerState
from rucola.broker.stored_message import renewed, stored_message
from rucola.errors import InvalidMessage
from rucola.message import MessageExt, MessageInner, properties
from rucola.message.topics import retry_topic
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand, is_true
from rucola.protocol.retry import ConsumerSendMsgBackRequestHeader
from rucola.protocol.topic import PERM_WRITE, TOPIC_FLAG_UNIT_SUB
from rucola.remoting.connection import Connection, Processor, Reply
from rucola.store.config import PutMessageStatus

logger = logging.getLogger(__name__)

MAX_RECONSUME_TIMES = (1 << 31) - 1
"""The largest number that a record holds."""


class SendBackProcessor:
    """Puts messages that consumers give back."""

    def __init__(self, state: BrokerState, delay_level_count: int) -> None:
        self._state = state
        self._delay_level_count = delay_level_count

    def table(self) -> dict[int, Processor]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(ConsumerSendMsgBackRequestHeader)
        now_ms = self._state.clock()
        group = self._state.groups.find(header.group, now_ms)
        if group is None:
            return command.response(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                remark=f"subscription group not exist, {header.group}; create it, or set "
                "autoCreateSubscriptionGroup=true on the broker",
            )
        if not self._state.config.broker_permission & PERM_WRITE:
            return command.response(
                ResponseCode.NO_PERMISSION,
                remark=f"the broker[{self._state.config.broker_ip1}] sending message is forbidden",
            )
        if group.retry_queue_nums <= 0:
            return command.response(ResponseCode.SUCCESS)
        topic_sys_flag = TOPIC_FLAG_UNIT_SUB if is_true(header.unit_mode) else 0
        topic = self._state.topics.ensure(retry_topic(header.group), group.retry_queue_nums, now_ms, topic_sys_flag)
        if not topic.perm & PERM_WRITE:
            return command.response(
                ResponseCode.NO_PERMISSION, remark=f"the topic[{topic.topic_name}] sending message is forbidden"
            )
        try:
            message = stored_message(self._state.store, header.offset)
        except InvalidMessage as error:
            return command.response(
                ResponseCode.SYSTEM_ERROR, remark=f"look message by offset failed, {header.offset}: {error}"
            )
        limit = max_reconsume_times(group, command.version, header.max_reconsume_times)
        is_dead = message.reconsume_times >= limit or header.delay_level < 0
        retry_place = (topic.topic_name, random.randrange(group.retry_queue_nums))
        again = self._again(message, header, None if is_dead else retry_place, now_ms)
        put = self._state.puts.put("retry", again, now_ms)
        if put.status is not PutMessageStatus.PUT_OK:
            return command.response(ResponseCode.SYSTEM_ERROR, remark=self._state.puts.reason(put))
        self._state.stats.record_send_back(header.group, message.properties.get(properties.RETRY_TOPIC, message.topic))
        return self._state.persistence.reply_when_persisted(command.response(ResponseCode.SUCCESS))

    def _again(
        self,
        message: MessageExt,
        header: ConsumerSendMsgBackRequestHeader,
        retry_place: tuple[str, int] | None,
        now_ms: int,
    ) -> MessageInner:
        """Return what is put for a message: for its retry topic, or a dead letter if that place is None.

        A message whose properties leave no room for those of a retry becomes a dead letter with its own alone.
        """
        again = replace(message, prepared_transaction_offset=0)
        again.reconsume_times = min(message.reconsume_times + 1, MAX_RECONSUME_TIMES)
        pairs = again.properties = message.properties | {properties.WAIT: "false"}
        pairs.setdefault(properties.RETRY_TOPIC, message.topic)
        pairs.setdefault(properties.ORIGIN_MESSAGE_ID, message.offset_msg_id)
        if retry_place is not None:
            pairs[properties.DELAY] = str(header.delay_level or FIRST_DELAY_LEVEL + message.reconsume_times)
            again.topic, again.queue_id = redirect_by_level(*retry_place, pairs, self._delay_level_count)
        else:
            pairs[properties.DELAY] = "0"
            again.topic, again.queue_id = dead_letter_place(self._state.topics, header.group, now_ms)
        try:
            return renewed(again)
        except InvalidMessage as error:
            again.topic, again.queue_id = dead_letter_place(self._state.topics, header.group, now_ms)
            again.properties = message.properties
            logger.error(
                "the properties of message %s leave no room for a retry by group %s; it goes to %s: %s",
                message.msg_id, header.group, again.topic, error,
            )  # fmt: skip
            return renewed(again)
