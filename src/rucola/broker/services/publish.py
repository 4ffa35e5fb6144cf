"""Publishing: messages and batches of producers are stored.

1. The topic is looked up; one that does not exist is created before (`ensure_topic`).
2. The queue is chosen, and the sizes are checked.
3. The property string becomes the stored one: without WAIT, with CLUSTER (`rucola.broker.send_properties`).
4. The record is put. With SYNC_FLUSH or SYNC_MASTER the response then waits until the record is durable
   (`rucola.broker.durability`), unless the message has WAIT=false.

The messages of all sends of a read are put together, as columns (`put_usual`): each step runs once, and no object per
message is created. Unusual messages leave the columns and are put one by one (`publish`): delayed ones wait
elsewhere (`delivery.delay`, `delivery.timer`), half messages are stored where no consumer reads them
(`delivery.transactions`), and a message for `%RETRY%group` that was retried too often is stored in `%DLQ%group`.

Corresponds to `SendMessageProcessor` and `AbstractSendMessageProcessor` of Apache RocketMQ 4.9.8. Deliberate
differences:

- A refusal names the reason, where Apache lists possible ones.
- A message that a client sends to its dead letter topic by way of `%RETRY%group` is stored there at once, where Apache
  delays it once more.
- `batch` may be "1", as the C++ client 1.x writes it. Apache stores such a batch as one message that cannot be read.
- A message whose sysFlag is a half or rolled-back message's while TRAN_MSG is not true is refused: no queue would get
  it. Apache answers SUCCESS and loses it.
- A message with TRAN_MSG that is retried with a delay is retried, where Apache opens another transaction.
- A half message that could not be committed is refused.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from itertools import accumulate, chain
from sys import intern
from typing import Final, NamedTuple, TypeAlias, cast

from rucola import refusals
from rucola.access import Caller, Check, Reason, Refusal, Refused, Resource
from rucola.broker.delivery.delay import delay_level, redirect_by_level
from rucola.broker.delivery.timer import redirect_delayed
from rucola.broker.durability import Durability, Missing
from rucola.broker.retry_policy import dead_letter_queue, max_reconsume_times
from rucola.broker.send_properties import PropertyEditor
from rucola.broker.services.requests import PublishRequest
from rucola.broker.services.results import Published, StoredSends
from rucola.broker.state import BrokerState
from rucola.domain.topic import MULTI_TAG, TOPIC_FLAG_UNIT, TOPIC_FLAG_UNIT_SUB
from rucola.errors import InvalidMessage
from rucola.message import MessageInner, MessageInnerBatch, properties, sysflag, topics
from rucola.message.batch import decode_part
from rucola.message.hashing import tags_code
from rucola.message.host import encode_host
from rucola.message.properties import is_true
from rucola.message.recall import RecallHandle
from rucola.store.config import PUT_OK, PutBatchResult, PutMessageStatus
from rucola.store.multi_dispatch import MULTI_DISPATCH_NAME, check_names

_BatchColumns: TypeAlias = (
    "tuple[list[int], list[bytes], list[bytes], Sequence[str | None], Sequence[str | None], Sequence[str | None]]"
)
"""Of a batch: (flags, bodies, stored property strings, tags, unique keys, KEYS)."""

UNSLICED_MESSAGES: Final = 1024
"""Messages up to which a batch is stored at once, in about 3 ms."""
_PART: Final = 64

_SYSTEM_PREFIX: Final = "%"

_IS_NOT_DISPATCHED: Final = sysflag.TRANSACTION_PREPARED
"""The sysFlag bit of prepared and rolled-back records; no queue gets them."""

_RESERVE: Final = 512
"""Bytes of a CommitLog file that a waiting message must leave free, since it is put again with a longer record."""

_PUT_REFUSALS = {
    PutMessageStatus.SERVICE_NOT_AVAILABLE: refusals.STORE_TAKES_NO_MESSAGES,
    PutMessageStatus.CREATE_MAPEDFILE_FAILED: refusals.NO_DISK_SPACE,
    PutMessageStatus.MESSAGE_ILLEGAL: refusals.RECORD_TOO_LARGE,
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED: refusals.PROPERTIES_TOO_LARGE,
    PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED: refusals.TOO_MANY_LIGHT_QUEUES,
}


class SentMessages(NamedTuple):
    """Messages as producers send them, as columns of equal length."""

    topics: list[str]
    queue_ids: list[int]
    flags: list[int]
    sys_flags: list[int]
    born_timestamps: list[int]
    reconsume_times: list[int]
    properties: list[bytes]
    bodies: list[bytes]


class PublishService:
    """Stores messages of producers. `check_permission` checks topics that are created by their first message."""

    def __init__(
        self,
        state: BrokerState,
        durability: Durability,
        check_permission: Check,
        topics_registered: Callable[[], Awaitable[None]],
    ) -> None:
        self._state = state
        self._config = state.config
        self._store = state.store
        self._store_config = state.store.config
        self._topics = state.topics
        self._topic = state.topics.get
        self._clock = state.clock
        self._stats = state.stats
        self._transactions = state.transactions
        self._durability = durability
        self._check_permission = check_permission
        self._topics_registered = topics_registered
        self._delay_level_count = state.delay_level_count
        self.waits = durability.must_wait
        """Whether responses wait until their messages are durable, except those with WAIT=false."""
        self._properties = PropertyEditor(state.config.broker_cluster_name)
        self._region = state.config.region_fields

    # Admission.

    def has_topic(self, topic: str) -> bool:
        """Return whether a topic exists, on disk."""
        return self._topic(topic) is not None and topic not in self._topics.unwritten

    async def ensure_topic(self, caller: Caller, request: PublishRequest) -> None:
        """Create the topic if it does not exist, on disk and registered afterwards. Raises Refused.

        So a consumer that starts after the first message finds the topic.
        """
        while not self.has_topic(request.topic):  # it may be deleted during the two waits
            if self._topic(request.topic) is None:
                self._create_topic(request)
            await self._state.persistence.wait_persisted()
            await self._topics_registered()
            self._check_permission(caller, Resource(request.topic))

    def _create_topic(self, request: PublishRequest) -> None:
        try:
            topics.check_topic(request.topic)
        except InvalidMessage as error:
            raise self._refused(Reason.INVALID, str(error)) from None
        is_retry, now_ms = request.topic.startswith(topics.RETRY_PREFIX), self._clock()
        topic_sys_flag = (TOPIC_FLAG_UNIT_SUB if is_retry else TOPIC_FLAG_UNIT) if request.unit_mode else 0
        # The number of groups limits their retry topics: a group that exists can always retry.
        is_limited = not is_retry or self._state.groups.get(request.topic.removeprefix(topics.RETRY_PREFIX)) is None
        created = self._topics.create_from_default(
            request.topic,
            request.default_topic,
            request.default_topic_queue_nums,
            topic_sys_flag,
            now_ms,
            is_limited=is_limited,
        )
        if created is None and is_retry:
            created = self._topics.ensure(request.topic, 1, now_ms, topic_sys_flag, is_limited=is_limited)
        if created is None:
            raise self._no_topic(request.topic)

    def _no_topic(self, topic: str) -> Refused:
        return self._refused(refusals.SEND_TOPIC_NOT_FOUND, topic=topic)

    def queue_for(self, caller: Caller, request: PublishRequest) -> int:
        """Return the id of the queue to store in, and note the topic's kind of tags in `sys_flag`. Raises Refused.

        The id of a read-only queue stays, as in Apache.
        """
        topic = self._topic(request.topic)
        if topic is None:
            raise self._no_topic(request.topic)
        if topic.topic_filter_type == MULTI_TAG:
            request.sys_flag |= sysflag.MULTI_TAGS
        if 0 <= (queue_id := request.queue_id) < topic.write_queue_nums:
            return queue_id
        if queue_id < 0:
            if topic.write_queue_nums < 1:
                raise self._refused(refusals.NO_WRITE_QUEUE, topic=request.topic)
            return random.randrange(topic.write_queue_nums)  # noqa: S311 - spreads load
        if queue_id >= topic.read_queue_nums:
            raise self._refused(refusals.SEND_QUEUE_ILLEGAL, queue_id=queue_id, topic=topic, producer=caller.address)
        return queue_id

    # Usual messages, together.

    def put_usual(self, counts: list[int], sent: SentMessages, born_host: bytes) -> StoredSends | None:
        """Put the messages of the first sends, up to one with an unusual message; `counts` has the number of each send.

        Returns None if the first is unusual, or if they were refused together: `publish` and `publish_batch` find out
        why.
        """
        # 1. How many are usual.
        max_keys_size = self._config.max_keys_per_message  # longer KEYS can be too many
        stored, tags_codes, unique_keys, keys, waits = self._properties.edit(sent.properties, max_keys_size)
        usual = len(stored)
        unusual = set(filter(self._is_unusual_queue, set(zip(sent.topics, sent.queue_ids, strict=True))))
        if unusual:
            queues = enumerate(zip(sent.topics, sent.queue_ids, strict=True))
            usual = min(usual, next(number for number, queue in queues if queue in unusual))
        if usual < len(sent.topics):
            counts = counts[: bisect_right(list(accumulate(counts)), usual)]
            if not (usual := sum(counts)):
                return None
            sent = SentMessages._make(column[:usual] for column in sent)
            stored, tags_codes, unique_keys, keys, waits = (
                stored[:usual], tags_codes[:usual], unique_keys[:usual], keys[:usual], waits[:usual],
            )  # fmt: skip
        # 2. The put.
        now_ms = self._clock()
        if len(stored) == 1:  # a message alone takes half the time that columns of one take
            ((topic, queue_id, flag, sys_flag, born_timestamp, reconsume_times, _, body),) = zip(*sent, strict=True)
            message = MessageInner(
                topic, queue_id, body, stored[0], flag, sys_flag, born_timestamp, born_host, reconsume_times, 0,
                tags_codes[0], unique_keys[0], keys[0],
            )  # fmt: skip
            one = self._store.put(message, now_ms)
            result = PutBatchResult(one.status, [one.physical_offset], [one.queue_offset], one.size)
        else:
            columns = MessageInnerBatch(
                sent.topics, sent.queue_ids, sent.flags, sent.bodies, stored, sent.sys_flags, sent.born_timestamps,
                sent.reconsume_times, born_host, tags_codes, unique_keys, keys,
            )  # fmt: skip
            result = self._store.put_batch(columns, now_ms)
        if result.status is not PUT_OK:
            return None
        physical_offsets = result.physical_offsets
        end = physical_offsets[0] + result.size
        waiting = _waiting(counts, waits) if self.waits else ()
        self._record_put(now_ms, len(counts))
        return StoredSends(counts, sent.queue_ids, result.queue_offsets, physical_offsets, end, waiting)

    def _is_unusual_queue(self, queue: tuple[str, int]) -> bool:
        name, queue_id = queue
        topic = self._topic(name)
        return (
            topic is None
            or name in self._topics.unwritten
            or not 0 <= queue_id < topic.write_queue_nums
            or topic.topic_filter_type == MULTI_TAG
            or name[0] == _SYSTEM_PREFIX
        )

    # Single messages.

    def publish(self, caller: Caller, request: PublishRequest) -> Published:
        """Store one message of any kind in a topic that exists (`ensure_topic`). Raises Refused."""
        queue_id, born_host = self.queue_for(caller, request), encode_host(caller.address)
        try:
            return self._put_message(request, queue_id, born_host)
        except InvalidMessage as error:
            raise self.illegal(error) from None

    def _put_message(self, request: PublishRequest, queue_id: int, born_host: bytes) -> Published:
        body = request.body
        self.check_size(body)
        max_keys_size = self._config.max_keys_per_message
        stored, codes, unique_keys, keys, waits = self._properties.edit([request.properties], max_keys_size)
        if not stored or request.topic[0] == _SYSTEM_PREFIX or request.sys_flag & _IS_NOT_DISPATCHED:
            return self._put_unusual(request, queue_id, born_host)
        # Positional, in the order of MessageInner's fields: keywords cost 0.05 µs more.
        message = MessageInner(
            intern(request.topic), queue_id, body, stored[0], request.flag, request.sys_flag, request.born_timestamp,
            born_host, request.reconsume_times, 0, codes[0], unique_keys[0], keys[0],
        )  # fmt: skip
        return self._put(message, self._clock(), queue_id, waits[0])

    def _put(self, message: MessageInner, now_ms: int, queue_id: int, wait: str | None) -> Published:
        result = self._store.put(message, now_ms)
        if result.status is not PUT_OK:
            raise self._not_stored(result.status)
        self._record_put(now_ms)
        end = result.physical_offset + result.size
        must_wait = self.waits and wait != "false"
        return Published(queue_id, result.queue_offset, result.physical_offset, end, must_wait)

    def check_size(self, body: bytes) -> None:
        """Raise InvalidMessage for a body above maxMessageSize."""
        if len(body) > self._store_config.max_message_size:
            raise InvalidMessage(
                f"its body has {len(body)} bytes; {self._store_config.max_message_size} are allowed (maxMessageSize)"
            )

    def _put_unusual(self, request: PublishRequest, queue_id: int, born_host: bytes) -> Published:
        """Store a message that may wait or change its topic, or has malformed properties."""
        # 1. The properties as pairs. The order of the steps matters: each may add properties that later ones read.
        now_ms = self._clock()
        pairs = properties.parse(request.properties)
        wait = pairs.pop(properties.WAIT, None)
        pairs[properties.CLUSTER] = self._config.broker_cluster_name
        pairs.pop(properties.INNER_MULTI_QUEUE_OFFSET, None)  # the store assigns it
        if self._store_config.enable_multi_dispatch:
            check_names(pairs.get(properties.INNER_MULTI_DISPATCH, ""))
        is_half = _is_half(request, pairs)
        self._check_keys(request.topic, pairs.get(properties.KEYS))
        # 2. The queue that it is for, and the one that it is stored in until then.
        target = self._target_queue(request, queue_id, pairs, now_ms)
        place = self._waiting_queue(request, target, is_half, pairs, now_ms)
        if wait is not None and place[0] in (topics.SCHEDULE_TOPIC, topics.TRANS_HALF_TOPIC):
            pairs[properties.WAIT] = wait  # Apache stores it there
        # 3. The put.
        message = MessageInner(
            *place,
            body=request.body,
            properties=properties.join(pairs),
            flag=request.flag,
            sys_flag=_sys_flag(request, pairs),
            born_timestamp=request.born_timestamp,
            born_host=born_host,
            reconsume_times=request.reconsume_times,
            tags_code=tags_code(pairs.get(properties.TAGS)),
            unique_key=pairs.get(properties.UNIQ_KEY),
            keys=pairs.get(properties.KEYS),
        )
        if place != target:
            self._check_reserve(message)
        published = self._put(message, now_ms, queue_id, wait)
        if place[0] == topics.TIMER_TOPIC and message.unique_key:
            due_ms = int(pairs[properties.TIMER_OUT_MS])
            published.recall_handle = str(RecallHandle(target[0], self._config.broker_name, due_ms, message.unique_key))
        return published

    def _target_queue(
        self, request: PublishRequest, queue_id: int, pairs: dict[str, str], now_ms: int
    ) -> tuple[str, int]:
        if not request.topic.startswith(topics.RETRY_PREFIX):
            return request.topic, queue_id
        name = request.topic.removeprefix(topics.RETRY_PREFIX)
        group = self._state.groups.find(name, now_ms)
        if group is None:
            raise self._refused(refusals.RETRY_GROUP_NOT_FOUND, group=name)
        if request.reconsume_times < max_reconsume_times(group, request.max_reconsume_times):
            return request.topic, queue_id
        pairs.pop(properties.DELAY, None)
        return dead_letter_queue(self._topics, name, now_ms)

    def _waiting_queue(
        self, request: PublishRequest, target: tuple[str, int], is_half: bool, pairs: dict[str, str], now_ms: int
    ) -> tuple[str, int]:
        """Return the queue to store a message in, its target or where it waits, and store the target in `pairs`."""
        if not is_half:
            if request.reconsume_times:  # a timer message had its time before it was consumed
                return redirect_by_level(*target, pairs, self._delay_level_count)
            queue = redirect_delayed(*target, pairs, self._delay_level_count, now_ms)
            if queue[0] == topics.TIMER_TOPIC:
                self._topics.ensure_timer_topic(now_ms)
            return queue
        if self._config.reject_transaction_message:
            raise self._refused(refusals.TRANSACTIONS_FORBIDDEN, broker=self._config.broker_ip1)
        if request.producer_group:
            pairs.setdefault(properties.PGROUP, request.producer_group)  # END_TRANSACTION must name the same group
        return self._transactions.prepare(*target, pairs, now_ms)

    def _check_reserve(self, message: MessageInner) -> None:
        size = len(message.body) + len(message.properties)
        limit = self._store_config.mapped_file_size_commit_log - _RESERVE
        if size > limit:
            raise InvalidMessage(
                f"its body and properties have {size} bytes; {limit} are allowed for a message that waits "
                "(mappedFileSizeCommitLog)"
            )

    # Batches.

    def publish_batch(self, caller: Caller, request: PublishRequest) -> Generator[None, None, Published]:
        """Store the messages of any batch, all or none, in a topic that exists (`ensure_topic`). Raises Refused.

        In small steps (see `rucola.slices`); one step suffices for up to UNSLICED_MESSAGES.
        """
        queue_id, born_host = self.queue_for(caller, request), encode_host(caller.address)
        try:
            columns = yield from self._columns(request)
            return self._put_columns(request, queue_id, born_host, columns)
        except InvalidMessage as error:
            raise self.illegal(error) from None

    def _columns(self, request: PublishRequest) -> Generator[None, None, _BatchColumns]:
        size, limit = len(request.body), self._store_config.max_message_size
        if size > limit:
            raise InvalidMessage(f"the batch has {size} bytes; {limit} are allowed (maxMessageSize)")
        if request.sys_flag & sysflag.TRANSACTION_MASK:
            raise InvalidMessage(f"its sysFlag is {request.sys_flag}; a batch cannot be part of a transaction")
        if not size:
            raise InvalidMessage("the batch is empty")
        parts: list[_BatchColumns] = []
        count = position = 0
        while position < size:
            if parts:
                yield
            flags, bodies, strings, position = decode_part(
                request.body, position, _PART if parts else UNSLICED_MESSAGES
            )
            parts.append((flags, bodies, *self._properties.edit_batch(strings, request.properties)))
            count += len(flags)
            self._check_count(request.topic, count)
        if len(parts) == 1:
            return parts[0]
        return cast("_BatchColumns", tuple(list(chain.from_iterable(column)) for column in zip(*parts, strict=True)))

    def _check_keys(self, topic: str, keys: str | None) -> None:
        if keys and (count := sum(map(bool, keys.split(" ")))) > (limit := self._config.max_keys_per_message):
            refusal = self._state.limits.refused(
                "maxKeysPerMessage", limit, f"a message for topic {topic} with {count} keys"
            )
            raise self._refused(Reason.ILLEGAL_MESSAGE, str(refusal))

    def _check_count(self, topic: str, count: int) -> None:
        """Raise Refused for a batch of too many messages, which clients do not retry: no broker would accept it."""
        if count > (limit := self._config.max_messages_per_batch):
            found = f"a batch of more than {limit} messages for topic {topic}"
            refusal = self._state.limits.refused("maxMessagesPerBatch", limit, found)
            raise self._refused(Reason.ILLEGAL_MESSAGE, str(refusal))

    def _put_columns(
        self, request: PublishRequest, queue_id: int, born_host: bytes, columns: _BatchColumns
    ) -> Published:
        flags, bodies, stored, tags, unique_keys, keys = columns
        if self._store_config.enable_multi_dispatch and any(MULTI_DISPATCH_NAME in each for each in stored):
            raise InvalidMessage(f"a batch cannot be dispatched to further queues ({properties.INNER_MULTI_DISPATCH})")
        for words in keys:
            self._check_keys(request.topic, words)
        now_ms, count = self._clock(), len(bodies)
        result = self._store.put_batch(
            MessageInnerBatch(
                [intern(request.topic)] * count,
                [queue_id] * count,
                flags,
                bodies,
                stored,
                [request.sys_flag] * count,
                [request.born_timestamp] * count,
                [request.reconsume_times] * count,
                born_host,
                list(map(tags_code, tags)),
                unique_keys,
                keys,
            ),
            now_ms,
        )
        if result.status is not PUT_OK:
            raise self._not_stored(result.status)
        self._record_put(now_ms)
        first = result.physical_offsets[0]
        must_wait = self.waits and properties.parse(request.properties).get(properties.WAIT) != "false"
        end = first + result.size
        return Published(queue_id, result.queue_offsets[0], first, end, must_wait, result.physical_offsets)

    # Durability and refusals.

    def _record_put(self, began_ms: int, count: int = 1) -> None:
        if not self.waits:  # otherwise `when_durable` does
            self._stats.put_durations.record(self._clock() - began_ms, count)

    def when_durable(self, end: int, done: Callable[[Missing | None], None], count: int = 1) -> None:
        """Call `done` with None once all before `end` is durable, or with the status and text of the failure.

        `count` is the number of sends that wait.
        """
        began_ms = self._clock()

        def record(missing: Missing | None) -> None:
            self._stats.put_durations.record(self._clock() - began_ms, count)
            done(missing)

        self._durability.when_durable(end, record)

    def _not_stored(self, status: PutMessageStatus) -> Refused:
        self._stats.failed_puts += 1
        refusal = _PUT_REFUSALS.get(status, Refusal(Reason.FAILED, status.name))
        stopped = self._store.write_state.reason
        return self._refused(refusal.reason, stopped) if stopped else self._refused(refusal)

    def illegal(self, error: InvalidMessage) -> Refused:
        return self._refused(refusals.ILLEGAL_MESSAGE, why=error)

    def _refused(self, refusal: Refusal | Reason, text: str = "", **fields: object) -> Refused:
        return Refused(refusal, text, details=self._region, **fields)


def _sys_flag(request: PublishRequest, pairs: Mapping[str, str]) -> int:
    """Return the sysFlag to store. Raises InvalidMessage if no queue would get the record."""
    if is_true(pairs.get(properties.TRAN_MSG)):
        return sysflag.with_transaction_state(request.sys_flag, sysflag.TRANSACTION_NOT)
    if request.sys_flag & _IS_NOT_DISPATCHED:
        raise InvalidMessage(
            f"its sysFlag is {request.sys_flag}, that of a half or rolled-back message, but its property "
            f"{properties.TRAN_MSG} is not true; no queue would get it"
        )
    return request.sys_flag


def _waiting(counts: list[int], waits: list[str | None]) -> Sequence[bool]:
    """Return for each send whether its response waits, or nothing if none does; in a batch WAIT has no meaning."""
    if "false" not in waits:
        return [True] * len(counts)
    firsts = accumulate(counts[:-1], initial=0)
    waiting = [count > 1 or waits[first] != "false" for count, first in zip(counts, firsts, strict=True)]
    return waiting if True in waiting else ()


def _is_half(request: PublishRequest, pairs: Mapping[str, str]) -> bool:
    """Whether a message is a half message. Clients before 4.6.1 leave TRAN_MSG in messages to `%RETRY%group`."""
    is_retry = request.reconsume_times > 0 and delay_level(pairs) > 0
    return is_true(pairs.get(properties.TRAN_MSG)) and not is_retry
