"""Pulling: PULL_MESSAGE (11), with long polling.

Every answer carries the queue's ends and where to go on, whatever its code:

    FOUND                                             SUCCESS, records as body
    NO_MATCHED_MESSAGE, MESSAGE_WAS_REMOVING          PULL_RETRY_IMMEDIATELY
    OFFSET_FOUND_NULL, OFFSET_OVERFLOW_ONE            PULL_NOT_FOUND, held first where the pull allows it
    NO_MESSAGE_IN_QUEUE, NO_MATCHED_LOGIC_QUEUE       PULL_NOT_FOUND at offset 0, else PULL_OFFSET_MOVED
    OFFSET_TOO_SMALL, OFFSET_OVERFLOW_BADLY           PULL_OFFSET_MOVED, noted in the topic OFFSET_MOVED_EVENT

Which broker to pull from next is suggested with slaveReadEnable: the group's whichBrokerWhenConsumeSlowly (1) where it
reads what lies far behind (accessMessageInMemoryMaxRatio), else its brokerId (0); without that always the master. A
slave does not have all that its master has, so it sends nobody to another offset (offsetCheckInSlave): who asks for
what it does not have gets PULL_RETRY_IMMEDIATELY and the offset that it asked for; who is ahead of it is held first,
where the pull allows that. It takes no offset that is committed with a pull.

The subscription comes with the pull (sysFlag bit SUBSCRIPTION) or from the group's heartbeat. Where it filters by
properties (enablePropertyFilter), the compiled expression is the group's in `broker.tables.filters`; filterSupportRetry
has it looked at once more when a message comes again through `%RETRY%group`.

Answers to `PullMessageProcessor` and `ExpressionForRetryMessageFilter` of Apache RocketMQ 4.9.8. Deliberate
differences: a pull whose own expression cannot be compiled is refused, where Apache answers it with every message; no
pull meets a filter older than its subscription, since a heartbeat brings both at once; a slave holds a pull from behind
its end, where Apache's has the client ask again at once, and again.
"""

from __future__ import annotations

from collections.abc import Mapping

from rucola import fastjson
from rucola.broker.message_filter import Matches, MessageFilter, accepts, filter_not_supported, matches
from rucola.broker.pull_request_hold import HeldPull, PullRequestHold
from rucola.broker.state import BrokerState
from rucola.errors import InvalidMessage
from rucola.message import MessageInner, properties
from rucola.message.hashing import tags_code
from rucola.message.topics import OFFSET_MOVED_EVENT, RETRY_PREFIX
from rucola.protocol import pull
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.heartbeat import SubscriptionData, subscription
from rucola.protocol.pull import PullMessageRequestHeader, PullMessageResponseHeader
from rucola.protocol.route import MASTER_ID
from rucola.protocol.topic import PERM_READ, SubscriptionGroupConfig, TopicConfig
from rucola.remoting.connection import Connection, Processor, Reply
from rucola.store.config import GetMessageStatus, GetResult

_CODES = {
    GetMessageStatus.FOUND: ResponseCode.SUCCESS,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
}
_OUTSIDE = frozenset(
    {
        GetMessageStatus.NO_MESSAGE_IN_QUEUE,
        GetMessageStatus.NO_MATCHED_LOGIC_QUEUE,
        GetMessageStatus.OFFSET_TOO_SMALL,
        GetMessageStatus.OFFSET_OVERFLOW_BADLY,
    }
)
"""What a slave that is behind its master answers, too; then the offset that was asked for stays."""
_EMPTY_QUEUE = (GetMessageStatus.NO_MESSAGE_IN_QUEUE, GetMessageStatus.NO_MATCHED_LOGIC_QUEUE)


class PullProcessor:
    """Reads records for consumers and holds the pulls that find none."""

    def __init__(self, state: BrokerState, hold: PullRequestHold) -> None:
        self._state = state
        self._hold = hold

    def table(self) -> dict[int, Processor]:
        return {RequestCode.PULL_MESSAGE: self.pull_message}

    def pull_message(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(PullMessageRequestHeader)
        checked = self._checked(connection, command, header)
        if isinstance(checked, RemotingCommand):
            return checked
        group, wanted = checked
        if header.sys_flag & pull.COMMIT_OFFSET and not self._state.store.config.is_slave:
            self._state.offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)

        may_wait = bool(header.sys_flag & pull.SUSPEND)
        outcome = self._read(command, header, group, wanted, header.queue_offset, may_wait=may_wait)
        if isinstance(outcome, RemotingCommand):
            return outcome

        def try_again(queue_offset: int, is_last: bool) -> RemotingCommand | int:
            checked = self._checked(connection, command, header)  # the topic may be gone, or closed to readers
            if isinstance(checked, RemotingCommand):
                return checked
            return self._read(command, header, *checked, queue_offset, may_wait=not is_last, is_held=True)

        wait_ms = (
            header.suspend_timeout_millis
            if self._state.config.long_polling_enable
            else self._state.config.short_polling_time_mills
        )
        held = HeldPull(connection, outcome, self._state.clock() + wait_ms, try_again)
        self._hold.hold(header.topic, header.queue_id, held)
        return None

    def _checked(
        self, connection: Connection, command: RemotingCommand, header: PullMessageRequestHeader
    ) -> tuple[SubscriptionGroupConfig | None, MessageFilter] | RemotingCommand:
        """Return the group of a pull and what it wants, or the answer that refuses it."""
        group = self._state.groups.find(header.consumer_group, self._state.clock())
        topic = self._state.topics.get(header.topic)
        refusal = self._refusal(connection, command, header, group, topic)
        if refusal is not None:
            return refusal
        try:
            wanted = self._filter(command, header, group)
        except InvalidMessage as error:
            return command.response(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark=f"parse the consumer's subscription failed: {error}"
            )
        return wanted if isinstance(wanted, RemotingCommand) else (group, wanted)

    def _refusal(
        self,
        connection: Connection,
        command: RemotingCommand,
        header: PullMessageRequestHeader,
        group: SubscriptionGroupConfig | None,
        topic: TopicConfig | None,
    ) -> RemotingCommand | None:
        """Why this pull may not read, or None."""
        if not self._state.config.broker_permission & PERM_READ:
            return command.response(
                ResponseCode.NO_PERMISSION,
                remark=f"the broker[{self._state.config.broker_ip1}] pulling message is forbidden",
            )
        if group is None:
            return command.response(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                remark=f"subscription group [{header.consumer_group}] does not exist; create it, or set "
                "autoCreateSubscriptionGroup=true on the broker",
            )
        if not group.consume_enable:
            return command.response(
                ResponseCode.NO_PERMISSION, remark=f"subscription group no permission, {header.consumer_group}"
            )
        if topic is None:
            return command.response(
                ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{header.topic}] not exist, apply first please!"
            )
        if not topic.perm & PERM_READ:
            return command.response(
                ResponseCode.NO_PERMISSION, remark=f"the topic[{header.topic}] pulling message is forbidden"
            )
        if not 0 <= header.queue_id < topic.read_queue_nums:
            return command.response(
                ResponseCode.SYSTEM_ERROR,
                remark=f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{connection.peer}]",
            )
        return None

    def _filter(
        self, command: RemotingCommand, header: PullMessageRequestHeader, group: SubscriptionGroupConfig | None
    ) -> MessageFilter | RemotingCommand:
        """What the pull wants, or the answer that says why that is unknown. InvalidMessage for a wrong expression."""
        matched: Matches | None = None
        if header.sys_flag & pull.SUBSCRIPTION:
            wanted = subscription(header.topic, header.subscription, header.expression_type or "TAG")
            if not wanted.is_tag_type:
                matched = matches(wanted.expression_type, wanted.sub_string)
        else:
            known = self._subscription(command, header, group)
            if isinstance(known, RemotingCommand):
                return known
            wanted = known
            if not wanted.is_tag_type:
                matched = self._state.filters.matches(header.topic, header.consumer_group)
                if matched is None:
                    return command.response(
                        ResponseCode.FILTER_DATA_NOT_EXIST,
                        remark="The broker's consumer filter data is not exist!Your expression may be wrong!",
                    )
        if not wanted.is_tag_type and not self._state.config.enable_property_filter:
            return filter_not_supported(command, wanted)
        if self._state.config.filter_support_retry and header.topic.startswith(RETRY_PREFIX):
            matched = self._matches_retry(header.topic.removeprefix(RETRY_PREFIX))
        return MessageFilter(accepts(wanted) if wanted.is_tag_type else None, matched)

    def _matches_retry(self, group: str) -> Matches:
        """The filter of a retry topic: what the group wants of the topic from which a message first came."""

        def matches_retry(pairs: Mapping[str, str]) -> bool:
            wanted = self._state.filters.matches(pairs.get(properties.RETRY_TOPIC, ""), group)
            return wanted is None or wanted(pairs)

        return matches_retry

    def _subscription(
        self, command: RemotingCommand, header: PullMessageRequestHeader, group: SubscriptionGroupConfig | None
    ) -> SubscriptionData | RemotingCommand:
        """What the group's heartbeats asked for, or the answer that says why that is unknown."""
        members = self._state.clients.consumers.get(header.consumer_group)
        if members is None:
            return command.response(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                remark=f"the consumer's group info not exist: nobody of {header.consumer_group} has sent a heartbeat",
            )
        if group and not group.consume_broadcast_enable and members.message_model == "BROADCASTING":
            return command.response(
                ResponseCode.NO_PERMISSION,
                remark=f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
            )
        known = members.subscriptions.get(header.topic)
        if known is None:
            return command.response(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                remark=f"the consumer's subscription not exist: {header.consumer_group} does not subscribe to "
                f"{header.topic}; members of one group must subscribe alike",
            )
        if known.sub_version < header.sub_version:
            return command.response(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, remark="the consumer's subscription not latest"
            )
        return known

    def _read(
        self,
        command: RemotingCommand,
        header: PullMessageRequestHeader,
        group: SubscriptionGroupConfig | None,
        wanted: MessageFilter,
        queue_offset: int,
        *,
        may_wait: bool,
        is_held: bool = False,
    ) -> RemotingCommand | int:
        """The answer to a pull from `queue_offset` on, or the offset to wait from."""
        result = self._state.store.get(
            header.topic,
            header.queue_id,
            queue_offset,
            header.max_msg_nums,
            accepts=wanted.accepts,
            matches=wanted.matches,
        )
        code = _CODES[result.status]
        if result.records:
            self._state.stats.record_get(header.consumer_group, header.topic, len(result.records), result.size)
        elif not is_held:
            self._state.stats.record_miss()
        if result.status in _EMPTY_QUEUE and queue_offset == 0:
            code = ResponseCode.PULL_NOT_FOUND
        if may_wait and code == ResponseCode.PULL_NOT_FOUND:
            return queue_offset
        if may_wait and is_held and result.status is GetMessageStatus.NO_MATCHED_MESSAGE:
            return result.next_begin_offset
        suggested, next_begin_offset = self._suggested(group, result), result.next_begin_offset
        store_config = self._state.store.config
        if store_config.is_slave and not store_config.offset_check_in_slave:
            if code == ResponseCode.PULL_OFFSET_MOVED:
                if may_wait and result.status is GetMessageStatus.OFFSET_OVERFLOW_BADLY:
                    return queue_offset
                code = ResponseCode.PULL_RETRY_IMMEDIATELY
                suggested = group.broker_id if group is not None else MASTER_ID
            if result.status in _OUTSIDE:
                next_begin_offset = queue_offset
        elif code == ResponseCode.PULL_OFFSET_MOVED:
            self._note_offset_moved(header, result)
        return command.response(
            code,
            PullMessageResponseHeader(
                suggest_which_broker_id=suggested,
                next_begin_offset=next_begin_offset,
                min_offset=result.min_offset,
                max_offset=result.max_offset,
            ),
            b"".join(result.records),
            remark=result.status.name,
        )

    def _suggested(self, group: SubscriptionGroupConfig | None, result: GetResult) -> int:
        """From which broker the group had better pull next."""
        if not self._state.config.slave_read_enable or group is None:
            return MASTER_ID
        return group.which_broker_when_consume_slowly if result.suggests_slave else group.broker_id

    def _note_offset_moved(self, header: PullMessageRequestHeader, result: GetResult) -> None:
        """Leave a message in OFFSET_MOVED_EVENT that this group was sent to another offset; a slave writes nothing."""
        if self._state.store.config.is_slave:
            return
        event = {
            "consumerGroup": header.consumer_group,
            "messageQueue": {
                "brokerName": self._state.config.broker_name,
                "queueId": header.queue_id,
                "topic": header.topic,
            },
            "offsetNew": result.next_begin_offset,
            "offsetRequest": header.queue_offset,
        }
        group = header.consumer_group
        now_ms = self._state.clock()
        self._state.puts.put_or_buffer(
            "offset moved event",
            MessageInner(
                OFFSET_MOVED_EVENT,
                0,
                fastjson.dumps(event),
                properties.join({properties.KEYS: group, properties.TAGS: group}),
                0,
                0,
                now_ms,
                self._state.config.store_host,
                tags_code=tags_code(group),
                keys=group,
            ),
            now_ms,
        )
