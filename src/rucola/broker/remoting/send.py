"""Sending: SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320).

A batch comes under its own code, or under one of the others with `batch` set in its header, as older clients send it.

The way of a message: check the topic (making it where a default topic may be inherited from), the queue, the
permissions and the sizes; turn the property string into the stored one (without WAIT, with CLUSTER); put the record;
answer with its offsetMsgId and queue offset. With SYNC_FLUSH or SYNC_MASTER the answer waits until the record is safe
(see `broker.durability`), unless the message says WAIT=false; where it is not in time the answer is never SUCCESS.

This is the hottest path of the broker: the property string is edited, not rebuilt, and the answer is formatted
straight into its bytes. A message that asks for more goes a longer way (`_put_unusual`): one with a delay or a time of
its own waits (see `broker.delay` and `broker.timer`), half of a transaction is kept where nobody sees it (see
`broker.transactions`), and one for `%RETRY%group` that was tried too often goes to `%DLQ%group`.

Answers to `SendMessageProcessor` and `AbstractSendMessageProcessor` of Apache RocketMQ 4.9.8. Deliberate differences:
a remark says what was wrong with this message, where Apache lists what may have been; a message that a client sends
to its dead letter topic by way of `%RETRY%group` goes there at once, where Apache delays it once more; `batch` may be
"1", as the C++ client 1.x writes it, whose batches Apache stores as one message that nobody can read; a message
that no queue would get, as its sysFlag is that of a half or rolled-back message and TRAN_MSG is not true, is refused,
where Apache answers SUCCESS and loses it; a message with TRAN_MSG that comes again with a delay is retried, where
Apache opens another transaction; half of a transaction that could not be committed is refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from struct import Struct
from sys import intern
from typing import Final

from msgspec import json

from rucola.broker.background.registration import Registration
from rucola.broker.config import BrokerConfig
from rucola.broker.delivery.delay import delay_level, redirect_by_level
from rucola.broker.delivery.timer import redirect_delayed
from rucola.broker.delivery.transactions import TransactionalMessageService
from rucola.broker.durability import Durability
from rucola.broker.retry_policy import dead_letter_place, max_reconsume_times
from rucola.broker.send_properties import Editing
from rucola.broker.tables.groups import SubscriptionGroupTable
from rucola.broker.tables.persistence import TablePersistence
from rucola.broker.tables.topics import TopicConfigTable
from rucola.errors import InvalidMessage
from rucola.message import MessageInner, MessageInnerBatch, properties, sysflag, topics
from rucola.message.batch import decode_batch
from rucola.message.hashing import tags_code
from rucola.message.host import encode_host
from rucola.message.ids import OFFSET_DIGITS, host_digits, offset_msg_ids
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import JSON, VERSION, RemotingCommand, decode_command, is_true
from rucola.protocol.send import SendMessageRequestHeader, SendMessageRequestHeaderV2
from rucola.protocol.topic import MULTI_TAG, PERM_WRITE, TOPIC_FLAG_UNIT, TOPIC_FLAG_UNIT_SUB, TopicConfig
from rucola.remoting.connection import Answer, Connection, Processor, Reply
from rucola.store.config import PUT_OK, PutMessageStatus, StoreConfig
from rucola.store.message_store import MessageStore

SendHeader = SendMessageRequestHeader | SendMessageRequestHeaderV2

_PREFIX: Final = Struct(">II")

_SYSTEM_PREFIX: Final = "%"
"""How the names of retry and dead letter topics begin."""

_IS_NOT_DISPATCHED: Final = sysflag.TRANSACTION_PREPARED
"""The bit of sysFlag that prepared and rolled-back records have in common; no queue gets them."""

_ROOM: Final = 512
"""Bytes of a file that a waiting message must leave free: it is put again with a longer topic and more properties."""

_REFUSED_BY_STORE = {
    PutMessageStatus.SERVICE_NOT_AVAILABLE: (ResponseCode.SERVICE_NOT_AVAILABLE, "the store takes no messages"),
    PutMessageStatus.CREATE_MAPEDFILE_FAILED: (ResponseCode.SYSTEM_ERROR, "the disk has no room for the message"),
    PutMessageStatus.MESSAGE_ILLEGAL: (
        ResponseCode.MESSAGE_ILLEGAL,
        "the message is illegal: it does not fit a record, or the record does not fit a file of the CommitLog",
    ),
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED: (
        ResponseCode.MESSAGE_ILLEGAL,
        f"the message is illegal: its properties take more than {properties.MAX_PROPERTIES_SIZE} bytes",
    ),
}


class SendProcessor:
    """Puts messages into the store."""

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        store: MessageStore,
        topic_table: TopicConfigTable,
        groups: SubscriptionGroupTable,
        registration: Registration,
        writing: TablePersistence,
        durability: Durability,
        delay_level_count: int,
        transactions: TransactionalMessageService,
        clock: Callable[[], int],
    ) -> None:
        self._config = config
        self._store_config = store_config
        self._store = store
        self._topics = topic_table
        self._groups = groups
        self._delay_level_count = delay_level_count
        self._transactions = transactions
        self._registration = registration
        self._writing = writing
        self._durability = durability
        self._clock = clock
        self._waits = durability.must_wait
        self._store_host = config.store_host
        self._host_digits = host_digits(config.store_host)
        self._editing = Editing(config.broker_cluster_name)
        self._region = config.region_fields
        region = json.encode(self._region).replace(b"%", b"%%")
        self._answer_form = (
            b'{"code":0,"extFields":' + region[:-1] + b',"msgId":"%b","queueId":"%d","queueOffset":"%d"},"flag":1,'
            b'"language":"PYTHON","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":' + b"%d}" % VERSION
        )

    def table(self) -> dict[int, Processor]:
        return {
            RequestCode.SEND_MESSAGE: self.send_message,
            RequestCode.SEND_MESSAGE_V2: self.send_message_v2,
            RequestCode.SEND_BATCH_MESSAGE: self.send_batch,
        }

    def send_message(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(SendMessageRequestHeader)
        return self.admit(connection, command, header, self._put_of(header))

    def send_message_v2(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(SendMessageRequestHeaderV2)
        return self.admit(connection, command, header, self._put if header.batch == "false" else self._put_of(header))

    def send_batch(self, connection: Connection, command: RemotingCommand) -> Reply:
        return self.admit(connection, command, command.decode_header(SendMessageRequestHeaderV2), self._put_batch)

    def _put_of(self, header: SendHeader) -> Callable[[RemotingCommand, SendHeader, int, bytes], Reply]:
        """How what comes under the code of a single message is put, given what its header says of a batch."""
        return self._put_batch if is_true(header.batch) or header.batch == "1" else self._put

    def admit(
        self,
        connection: Connection,
        command: RemotingCommand,
        header: SendHeader,
        put: Callable[[RemotingCommand, SendHeader, int, bytes], Reply],
    ) -> Reply:
        """Let `put` take a message, with its queue id and where it was born, if topic, queue and broker take any."""
        topic = self._topics.get(header.topic)
        if topic is None:
            return self._send_to_new_topic(connection, command, header, put)
        queue_id = header.queue_id
        if (
            queue_id >= topic.write_queue_nums
            or not topic.perm & self._config.broker_permission & PERM_WRITE
            or header.topic in topics.NOT_ALLOWED_SEND_TOPICS
        ):
            refusal = self._refuse(connection, command, header, topic)
            if refusal is not None:
                return refusal
        if queue_id < 0:
            if topic.write_queue_nums < 1:
                return self._refusal(
                    command, ResponseCode.SYSTEM_ERROR, f"the topic[{header.topic}] has no queue to write to"
                )
            queue_id = random.randrange(topic.write_queue_nums)
        if topic.topic_filter_type == MULTI_TAG:
            header.sys_flag |= sysflag.MULTI_TAGS
        try:
            return put(command, header, queue_id, encode_host(connection.peer))
        except InvalidMessage as error:
            return self._refusal(command, ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}")

    async def _send_to_new_topic(
        self,
        connection: Connection,
        command: RemotingCommand,
        header: SendHeader,
        put: Callable[[RemotingCommand, SendHeader, int, bytes], Reply],
    ) -> Answer:
        """Make the topic, write it, let the name servers know it, then send: a consumer that starts now finds it."""
        try:
            topics.check_topic(header.topic)
        except InvalidMessage as error:
            return self._refusal(command, ResponseCode.SYSTEM_ERROR, str(error))
        is_retry, now_ms = header.topic.startswith(topics.RETRY_PREFIX), self._clock()
        topic_sys_flag = (TOPIC_FLAG_UNIT_SUB if is_retry else TOPIC_FLAG_UNIT) if is_true(header.unit_mode) else 0
        created = self._topics.create_from_default(
            header.topic, header.default_topic, header.default_topic_queue_nums, topic_sys_flag, now_ms
        )
        if created is None and is_retry:
            created = self._topics.ensure(header.topic, 1, now_ms, topic_sys_flag)
        if created is None:
            return self._refusal(
                command,
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{header.topic}] not exist, apply first please! Create it (`rucola admin updateTopic`), or set "
                "autoCreateTopicEnable=true on the broker",
            )
        await self._writing.wait_persisted()
        await self._registration.wait_registered()
        reply = self.admit(connection, command, header, put)
        return reply if reply is None or isinstance(reply, (bytes, RemotingCommand)) else await reply

    def _refuse(
        self, connection: Connection, command: RemotingCommand, header: SendHeader, topic: TopicConfig
    ) -> RemotingCommand | None:
        """Why this topic, queue or broker takes no message, or None where it does after all."""
        if not self._config.broker_permission & PERM_WRITE:
            return self._refusal(
                command,
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.broker_ip1}] sending message is forbidden",
            )
        if header.topic in topics.NOT_ALLOWED_SEND_TOPICS:
            return self._refusal(
                command, ResponseCode.NO_PERMISSION, f"Sending message to topic[{header.topic}] is forbidden."
            )
        if not topic.perm & PERM_WRITE:
            return self._refusal(
                command, ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] sending message is forbidden"
            )
        if header.queue_id >= max(topic.write_queue_nums, topic.read_queue_nums):
            return self._refusal(
                command,
                ResponseCode.SYSTEM_ERROR,
                f"request queueId[{header.queue_id}] is illegal, {topic} Producer: {connection.peer}",
            )
        return None

    def _put(self, command: RemotingCommand, header: SendHeader, queue_id: int, born_host: bytes) -> Reply:
        body = command.body
        if len(body) > self._store_config.max_message_size:
            raise InvalidMessage(
                f"its body has {len(body)} bytes; {self._store_config.max_message_size} are allowed (maxMessageSize)"
            )
        topic = intern(header.topic)  # one string for all messages of a topic, so that dispatch knows it by its address
        edited = self._editing.of_one(topic, header.properties)
        if edited is None or topic[0] == _SYSTEM_PREFIX or header.sys_flag & _IS_NOT_DISPATCHED:
            return self._put_unusual(command, header, queue_id, born_host)
        stored_properties, tags, unique_key, keys, wait = edited
        result = self._store.put(
            MessageInner(
                topic,
                queue_id,
                body,
                stored_properties,
                header.flag,
                header.sys_flag,
                header.born_timestamp,
                born_host,
                header.reconsume_times,
                0,
                tags_code(tags),
                unique_key,
                keys,
            ),
            self._clock(),
        )
        if result.status is not PUT_OK:
            return self._not_stored(command, result.status)
        msg_id = self._host_digits + OFFSET_DIGITS % result.physical_offset
        answer = self._answer(command, queue_id, msg_id, result.queue_offset)
        if self._waits and wait != "false":
            return self._once_safe(command, answer, result.physical_offset + result.size)
        return answer

    def _put_unusual(self, command: RemotingCommand, header: SendHeader, queue_id: int, born_host: bytes) -> Reply:
        """Put a message that goes elsewhere than its header says, or whose property string is not well formed.

        The answer names the queue of the request, and the offset in the queue that the message was put into.
        """
        now_ms = self._clock()
        pairs = properties.parse(header.properties)
        wait = pairs.pop(properties.WAIT, None)
        pairs[properties.CLUSTER] = self._config.broker_cluster_name
        is_half = _is_half(header, pairs)
        own_place = self._own_place(command, header, queue_id, pairs, now_ms)
        if isinstance(own_place, RemotingCommand):
            return own_place
        if is_half and self._config.reject_transaction_message:
            return self._refusal(
                command,
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.broker_ip1}] sending transaction message is forbidden "
                "(rejectTransactionMessage)",
            )
        if is_half:
            if header.producer_group:
                pairs.setdefault(properties.PGROUP, header.producer_group)  # by which it is ended
            place = self._transactions.prepare(*own_place, pairs, now_ms)
        elif header.reconsume_times:  # a message with a time of its own had it before it was consumed
            place = redirect_by_level(*own_place, pairs, self._delay_level_count)
        else:
            place = redirect_delayed(*own_place, pairs, self._delay_level_count, now_ms)
        if wait is not None and place[0] in (topics.SCHEDULE_TOPIC, topics.TRANS_HALF_TOPIC):
            pairs[properties.WAIT] = wait  # which Apache keeps there
        message = MessageInner(
            *place,
            body=command.body,
            properties=properties.join(pairs),
            flag=header.flag,
            sys_flag=_sys_flag(header, pairs),
            born_timestamp=header.born_timestamp,
            born_host=born_host,
            reconsume_times=header.reconsume_times,
            tags_code=tags_code(pairs.get(properties.TAGS)),
            unique_key=pairs.get(properties.UNIQ_KEY),
            keys=pairs.get(properties.KEYS),
        )
        if place != own_place:
            self._check_room(message)
        result = self._store.put(message, now_ms)
        if result.status is not PUT_OK:
            return self._not_stored(command, result.status)
        msg_id = self._host_digits + OFFSET_DIGITS % result.physical_offset
        answer = self._answer(command, queue_id, msg_id, result.queue_offset)
        if self._waits and wait != "false":
            return self._once_safe(command, answer, result.physical_offset + result.size)
        return answer

    def _own_place(
        self, command: RemotingCommand, header: SendHeader, queue_id: int, pairs: dict[str, str], now_ms: int
    ) -> tuple[str, int] | RemotingCommand:
        """Return the queue that a message is for, which may be that of dead letters, or a refusal."""
        if not header.topic.startswith(topics.RETRY_PREFIX):
            return header.topic, queue_id
        name = header.topic.removeprefix(topics.RETRY_PREFIX)
        group = self._groups.find(name, now_ms)
        if group is None:
            return self._refusal(
                command, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}"
            )
        if header.reconsume_times < max_reconsume_times(group, command.version, header.max_reconsume_times):
            return header.topic, queue_id
        pairs.pop(properties.DELAY, None)
        return dead_letter_place(self._topics, name, now_ms)

    def _check_room(self, message: MessageInner) -> None:
        """Raise InvalidMessage for a message that waits if its record could not be put again later."""
        size, most = len(message.body) + len(message.properties), self._store_config.mapped_file_size_commit_log - _ROOM
        if size > most:
            raise InvalidMessage(
                f"its body and properties have {size} bytes; {most} are allowed for a message that waits "
                "(mappedFileSizeCommitLog)"
            )

    def _put_batch(self, command: RemotingCommand, header: SendHeader, queue_id: int, born_host: bytes) -> Reply:
        size, limit = len(command.body), self._store_config.max_message_size
        if size > limit:
            raise InvalidMessage(f"the batch has {size} bytes; {limit} are allowed (maxMessageSize)")
        flags, bodies, strings = decode_batch(command.body)
        if not bodies:
            raise InvalidMessage("the batch is empty")
        if header.sys_flag & sysflag.TRANSACTION_MASK:
            raise InvalidMessage(f"its sysFlag is {header.sys_flag}; a batch cannot be part of a transaction")
        stored_properties, tags, unique_keys, keys = self._editing.of_batch(strings, header.properties)
        result = self._store.put_batch(
            MessageInnerBatch(
                intern(header.topic),
                queue_id,
                bodies,
                stored_properties,
                flags,
                header.sys_flag,
                header.born_timestamp,
                born_host,
                header.reconsume_times,
                list(map(tags_code, tags)),
                unique_keys,
                keys,
            ),
            self._clock(),
        )
        if result.status is not PUT_OK:
            return self._not_stored(command, result.status)
        ids = offset_msg_ids(self._store_host, result.physical_offsets)
        answer = self._answer(command, queue_id, ids.encode(), result.queue_offset)
        if self._waits and properties.parse(header.properties).get(properties.WAIT) != "false":
            return self._once_safe(command, answer, result.physical_offsets[0] + result.size)
        return answer

    def _answer(self, command: RemotingCommand, queue_id: int, msg_id: bytes, queue_offset: int) -> Answer:
        if command.serialize_type is JSON:
            header = self._answer_form % (msg_id, queue_id, queue_offset, command.opaque)
            size = len(header)
            return _PREFIX.pack(4 + size, size) + header
        answer = command.response(ResponseCode.SUCCESS)
        answer.ext_fields.update(
            self._region, msgId=msg_id.decode(), queueId=str(queue_id), queueOffset=str(queue_offset)
        )
        return answer

    async def _once_safe(self, command: RemotingCommand, answer: Answer, end: int) -> Answer:
        """The answer when the log is safe up to `end`, or with the same fields the code that says what is missing."""
        missing = await self._durability.wait_durable(end)
        if missing is None:
            return answer
        stored = decode_command(answer[_PREFIX.size :], b"", JSON) if isinstance(answer, bytes) else answer
        assert stored is not None
        code, why = missing
        unsafe = command.response(code, remark=why)
        unsafe.ext_fields.update(stored.ext_fields)
        return unsafe

    def _not_stored(self, command: RemotingCommand, status: PutMessageStatus) -> RemotingCommand:
        code, why = _REFUSED_BY_STORE.get(status, (ResponseCode.SYSTEM_ERROR, status.name))
        return self._refusal(command, code, self._store.refuses_writes or why)

    def _refusal(self, command: RemotingCommand, code: ResponseCode, remark: str) -> RemotingCommand:
        answer = command.response(code, remark=remark)
        answer.ext_fields.update(self._region)
        return answer


def _sys_flag(header: SendHeader, pairs: Mapping[str, str]) -> int:
    """Return the sysFlag of a record that its queue gets. Raises InvalidMessage if it would be in none."""
    if is_true(pairs.get(properties.TRAN_MSG)):
        return sysflag.with_transaction_state(header.sys_flag, sysflag.TRANSACTION_NOT)
    if header.sys_flag & _IS_NOT_DISPATCHED:
        raise InvalidMessage(
            f"its sysFlag is {header.sys_flag}, that of a half or rolled-back message, but its property "
            f"{properties.TRAN_MSG} is not true; no queue would get it"
        )
    return header.sys_flag


def _is_half(header: SendHeader, pairs: Mapping[str, str]) -> bool:
    """Tell whether a message is half of a transaction.

    Clients before 4.6.1 leave TRAN_MSG in a message that they send to `%RETRY%group`; its transaction is over.
    """
    is_retry = header.reconsume_times > 0 and delay_level(pairs) > 0
    return is_true(pairs.get(properties.TRAN_MSG)) and not is_retry
