"""Pulling: PULL_MESSAGE (11), with long polling.

Every answer carries the queue's ends and where to go on, whatever its code:

    FOUND                                             SUCCESS, records as body
    NO_MATCHED_MESSAGE, MESSAGE_WAS_REMOVING          PULL_RETRY_IMMEDIATELY
    OFFSET_FOUND_NULL, OFFSET_OVERFLOW_ONE            PULL_NOT_FOUND, held first where the pull allows it
    NO_MESSAGE_IN_QUEUE, NO_MATCHED_LOGIC_QUEUE       PULL_NOT_FOUND at offset 0, else PULL_OFFSET_MOVED
    OFFSET_TOO_SMALL, OFFSET_OVERFLOW_BADLY           PULL_OFFSET_MOVED, noted in the topic OFFSET_MOVED_EVENT

The subscription comes with the pull (sysFlag bit SUBSCRIPTION) or from the group's heartbeat.

Answers to `PullMessageProcessor` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from collections.abc import Callable

from rucola import fastjson
from rucola.broker.clients import Clients
from rucola.broker.config import BrokerConfig
from rucola.broker.filters import Accepts, accepts
from rucola.broker.pull_hold import HeldPull, PullRequestHold
from rucola.broker.stats import BrokerStats
from rucola.broker.tables.groups import SubscriptionGroupTable
from rucola.broker.tables.offsets import ConsumerOffsetTable
from rucola.broker.tables.topics import TopicConfigTable
from rucola.errors import InvalidMessage
from rucola.message import properties
from rucola.message.hashing import tags_code
from rucola.message.record import MessageInner
from rucola.message.topics import OFFSET_MOVED_EVENT
from rucola.protocol import pull
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.heartbeat import SubscriptionData, subscription
from rucola.protocol.pull import PullMessageRequestHeader, PullMessageResponseHeader
from rucola.protocol.topic import PERM_READ, SubscriptionGroupConfig, TopicConfig
from rucola.remoting.connection import Connection, Processor, Reply
from rucola.store.config import GetMessageStatus, GetResult
from rucola.store.message_store import MessageStore

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
_EMPTY_QUEUE = (GetMessageStatus.NO_MESSAGE_IN_QUEUE, GetMessageStatus.NO_MATCHED_LOGIC_QUEUE)


class PullProcessor:
    """Reads records for consumers and holds the pulls that find none."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicConfigTable,
        groups: SubscriptionGroupTable,
        offsets: ConsumerOffsetTable,
        clients: Clients,
        hold: PullRequestHold,
        stats: BrokerStats,
        clock: Callable[[], int],
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._clients = clients
        self._hold = hold
        self._stats = stats
        self._clock = clock

    def table(self) -> dict[int, Processor]:
        return {RequestCode.PULL_MESSAGE: self.pull_message}

    def pull_message(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(PullMessageRequestHeader)
        group = self._groups.find(header.consumer_group, self._clock())
        topic = self._topics.get(header.topic)
        refusal = self._refusal(connection, command, header, group, topic)
        if refusal is not None:
            return refusal
        wanted = self._subscription(command, header, group)
        if isinstance(wanted, RemotingCommand):
            return wanted
        if not wanted.is_tag_type:
            return command.response(
                ResponseCode.SYSTEM_ERROR,
                remark=f"The broker does not support consumer to filter message by {wanted.expression_type}",
            )
        try:
            accepted = accepts(wanted)
        except InvalidMessage as error:
            return command.response(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark=f"parse the consumer's subscription failed: {error}"
            )
        if header.sys_flag & pull.COMMIT_OFFSET:
            self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)

        may_wait = bool(header.sys_flag & pull.SUSPEND)
        outcome = self._read(command, header, accepted, header.queue_offset, may_wait=may_wait)
        if isinstance(outcome, RemotingCommand):
            return outcome

        def try_again(queue_offset: int, is_last: bool) -> RemotingCommand | int:
            return self._read(command, header, accepted, queue_offset, may_wait=not is_last, is_held=True)

        wait_ms = (
            header.suspend_timeout_millis if self._config.long_polling_enable else self._config.short_polling_time_mills
        )
        held = HeldPull(connection, outcome, self._clock() + wait_ms, try_again)
        self._hold.hold(header.topic, header.queue_id, held)
        return None

    def _refusal(
        self,
        connection: Connection,
        command: RemotingCommand,
        header: PullMessageRequestHeader,
        group: SubscriptionGroupConfig | None,
        topic: TopicConfig | None,
    ) -> RemotingCommand | None:
        """Why this pull may not read, or None."""
        if not self._config.broker_permission & PERM_READ:
            return command.response(
                ResponseCode.NO_PERMISSION, remark=f"the broker[{self._config.broker_ip1}] pulling message is forbidden"
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

    def _subscription(
        self, command: RemotingCommand, header: PullMessageRequestHeader, group: SubscriptionGroupConfig | None
    ) -> SubscriptionData | RemotingCommand:
        """What the pull asks for, or the answer that says why that is unknown."""
        if header.sys_flag & pull.SUBSCRIPTION:
            try:
                return subscription(header.topic, header.subscription, header.expression_type or "TAG")
            except InvalidMessage as error:
                return command.response(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark=f"parse the consumer's subscription failed: {error}"
                )
        members = self._clients.consumers.get(header.consumer_group)
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
        accepted: Accepts,
        queue_offset: int,
        *,
        may_wait: bool,
        is_held: bool = False,
    ) -> RemotingCommand | int:
        """The answer to a pull from `queue_offset` on, or the offset to wait from."""
        result = self._store.get(header.topic, header.queue_id, queue_offset, header.max_msg_nums, accepts=accepted)
        code = _CODES[result.status]
        if result.records:
            self._stats.got(header.consumer_group, header.topic, len(result.records), result.size)
        elif not is_held:
            self._stats.got_nothing()
        if result.status in _EMPTY_QUEUE and queue_offset == 0:
            code = ResponseCode.PULL_NOT_FOUND
        if may_wait and code == ResponseCode.PULL_NOT_FOUND:
            return queue_offset
        if may_wait and is_held and result.status is GetMessageStatus.NO_MATCHED_MESSAGE:
            return result.next_begin_offset
        if code == ResponseCode.PULL_OFFSET_MOVED:
            self._note_offset_moved(header, result)
        return command.response(
            code,
            PullMessageResponseHeader(
                suggest_which_broker_id=0,
                next_begin_offset=result.next_begin_offset,
                min_offset=result.min_offset,
                max_offset=result.max_offset,
            ),
            b"".join(result.records),
            remark=result.status.name,
        )

    def _note_offset_moved(self, header: PullMessageRequestHeader, result: GetResult) -> None:
        """Leave a message in OFFSET_MOVED_EVENT that this group was sent to another offset."""
        event = {
            "consumerGroup": header.consumer_group,
            "messageQueue": {
                "brokerName": self._config.broker_name,
                "queueId": header.queue_id,
                "topic": header.topic,
            },
            "offsetNew": result.next_begin_offset,
            "offsetRequest": header.queue_offset,
        }
        group = header.consumer_group
        now_ms = self._clock()
        self._store.put(
            MessageInner(
                OFFSET_MOVED_EVENT,
                0,
                fastjson.dumps(event),
                properties.join({properties.KEYS: group, properties.TAGS: group}),
                0,
                0,
                now_ms,
                self._config.store_host,
                tags_code=tags_code(group),
                keys=group,
            ),
            now_ms,
        )
