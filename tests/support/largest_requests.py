"""The largest request of every code that the limits permit, and servers that hold as much as their limits permit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig
from rucola.domain.client import ConsumerData, HeartbeatData, ProducerData
from rucola.domain.group import MessageRequestMode, SubscriptionGroupConfig
from rucola.domain.queue import LockedQueues, MessageQueue
from rucola.domain.route import RegisterBrokerBody
from rucola.domain.subscription import SubscriptionData
from rucola.domain.topic import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from rucola.domain.user import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from rucola.message.batch import encode_batch
from rucola.message.message import Message
from rucola.message.recall import RecallHandle
from rucola.namesrv.config import NamesrvConfig
from rucola.namesrv.server import Namesrv
from rucola.protocol.access import (
    AclRequestHeader,
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    DeleteAclRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
    UserRequestHeader,
)
from rucola.protocol.assignment import QueryAssignmentRequestBody
from rucola.protocol.body import MAX_JSON_BODY_SIZE, encode_body
from rucola.protocol.broker_stats import ViewBrokerStatsDataRequestHeader
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.connections import (
    CheckClientRequestBody,
    ConsumeMessageDirectlyRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    GetProducerConnectionListRequestHeader,
)
from rucola.protocol.group import (
    CloneGroupOffsetRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    GetConsumeStatsInBrokerRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryCorrectionOffsetRequestHeader,
    ResetOffsetRequestHeader,
)
from rucola.protocol.heartbeat import GetConsumerListByGroupRequestHeader, UnregisterClientRequestHeader
from rucola.protocol.kv import GetKVListByNamespaceRequestHeader, KVConfigRequestHeader, PutKVConfigRequestHeader
from rucola.protocol.offset import (
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rucola.protocol.pop import (
    MAX_ACKS,
    MAX_BITS,
    AckMessageRequestHeader,
    BatchAck,
    BatchAckMessageRequestBody,
    ChangeInvisibleTimeRequestHeader,
    PollingInfoRequestHeader,
    PopMessageRequestHeader,
    PopStatusRequestHeader,
    ReleasePopRequestHeader,
)
from rucola.protocol.promise import AskPromiseRequestHeader
from rucola.protocol.pull import SUBSCRIPTION, PullMessageRequestHeader
from rucola.protocol.query import QueryConsumeQueueRequestHeader, QueryMessageRequestHeader, ViewMessageRequestHeader
from rucola.protocol.retry import ConsumerSendMsgBackRequestHeader
from rucola.protocol.roles import (
    DemoteBrokerRequestHeader,
    HaStatusRequestHeader,
    PromoteBrokerRequestHeader,
    SwitchOverRequestHeader,
)
from rucola.protocol.route import (
    BrokerRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
    RegisterBrokerRequestHeader,
    WritePermOfBrokerRequestHeader,
    encode_registration,
)
from rucola.protocol.send import RecallMessageRequestHeader, SendMessageRequestHeaderV2
from rucola.protocol.topic import CreateTopicRequestHeader, GetConsumeStatsRequestHeader, TopicRequestHeader
from rucola.protocol.transaction import EndTransactionRequestHeader, ResumeCheckHalfMessageRequestHeader
from rucola.store.config import StoreConfig
from simulation.step_loop import StepClient, StepLoop
from support.cluster import SMALL_FILES

CODE = RequestCode
DEFAULTS = BrokerConfig()
WIDE = "Wide"
MEMBERS = 500
QUEUES = DEFAULTS.max_queue_nums_per_topic
TOPICS = DEFAULTS.max_topic_nums
GROUPS = DEFAULTS.max_subscription_group_nums
BATCH_SIZE = StoreConfig().max_message_size
NAMESRV = NamesrvConfig()
NAMESRV_TOPICS = NAMESRV.max_topics_per_broker

Requests = Callable[[], RemotingCommand]


def aged_directory(path: Path) -> None:
    """Write the tables of a broker that has as many topics, queues, groups and offsets as its limits permit."""
    (path / "config").mkdir(parents=True)
    version = {"counter": 1, "timestamp": 1}

    def write(name: str, table: dict[str, Any]) -> None:
        (path / "config" / f"{name}.json").write_text(json.dumps(table), encoding="utf-8")

    names = [WIDE, *(f"topic-{number}" for number in range(TOPICS - 50))]
    queues = {name: QUEUES if name == WIDE else 8 for name in names}
    topics = {
        name: {"topicName": name, "readQueueNums": count, "writeQueueNums": count} for name, count in queues.items()
    }
    write("topics", {"dataVersion": version, "topicConfigTable": topics})
    groups = {f"group-{number}": {"groupName": f"group-{number}"} for number in range(GROUPS - 50)}
    write("subscriptionGroup", {"dataVersion": version, "subscriptionGroupTable": groups})
    offsets = {f"{WIDE}@group-0": dict.fromkeys(map(str, range(QUEUES)), 0)}
    offsets |= {f"topic-{number}@group-0": {"0": 0, "1": 0} for number in range(TOPICS - 50)}
    offsets |= {f"{WIDE}@group-{number}": {"0": 0, "1": 0} for number in range(1, GROUPS - 50)}
    write("consumerOffset", {"offsetTable": offsets})


def started_broker(loop: StepLoop, path: Path) -> tuple[Broker, StepClient]:
    """A broker on an aged directory, with many connected clients; and one of them."""
    aged_directory(path)
    config = BrokerConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        broker_name="broker-a",
        vip_channel_enabled=False,
        grpc_server_enabled=False,
        enable_property_filter=True,
    )
    broker = Broker(
        config,
        StoreConfig(store_path_root_dir=path, **SMALL_FILES | {"mapped_file_size_commit_log": 16 << 20}),
        clock=lambda: int(loop.time() * 1000) + loop.now_ms,
    )
    loop.run(broker.start())
    members = []
    for number in range(MEMBERS):
        member = loop.connect(50_000 + number)
        loop.run(member.request(RemotingCommand.request(CODE.HEART_BEAT, body=_heartbeat(f"member-{number}", 1, 8))))
        members.append(member)
    for _ in range(256):
        loop.run(members[0].request(send(64)))
    return broker, members[0]


def started_namesrv(loop: StepLoop, path: Path) -> tuple[Namesrv, StepClient]:
    """A name server with as many brokers, values, and topics of one broker as its limits permit; and a client."""
    server = Namesrv("127.0.0.1", 0, config=NamesrvConfig(kv_config_path=path / "kv.json"))
    loop.run(server.start())
    client = loop.connect(50_000)
    loop.run(client.request(register(compressed=False, version=0)))
    for number in range(1, NAMESRV.max_brokers):
        one = register(compressed=False, version=0, topics=2, broker=number)
        loop.run(client.request(one))
    for number in range(32):
        header = PutKVConfigRequestHeader(
            namespace="ORDER_TOPIC_CONFIG", key=f"topic-{number}", value="x" * (NAMESRV.max_kv_size // 33)
        )
        loop.run(client.request(RemotingCommand.request(CODE.PUT_KV_CONFIG, header)))
    return server, client


def send(size: int) -> RemotingCommand:
    header = SendMessageRequestHeaderV2(
        producer_group="p",
        topic=WIDE,
        queue_id=-1,
        sys_flag=0,
        born_timestamp=1,
        flag=0,
        properties=f"KEYS\x01key\x02UNIQ_KEY\x01{'A' * 32}\x02",
    )
    return RemotingCommand.request(CODE.SEND_MESSAGE_V2, header, bytes(size))


def batch(count: int, **pairs: str) -> RemotingCommand:
    header = SendMessageRequestHeaderV2(
        producer_group="p", topic=WIDE, queue_id=1, sys_flag=0, born_timestamp=1, flag=0, batch="true"
    )
    one = encode_batch([Message("", b"", properties=pairs)])
    body = one * min(count, BATCH_SIZE // len(one))
    return RemotingCommand.request(CODE.SEND_BATCH_MESSAGE, header, body)


def _heartbeat(client_id: str, groups: int, subscriptions: int, expression: str = "*") -> bytes:
    wanted = [SubscriptionData(topic=f"topic-{number}", sub_string=expression) for number in range(subscriptions)]
    consumers = [ConsumerData(group_name=f"group-{number}") for number in range(groups)]
    consumers[0].subscription_data_set = [SubscriptionData(topic=WIDE), *wanted]
    producers = [ProducerData(group_name="producers")]
    return encode_body(HeartbeatData(client_id=client_id, consumer_data_set=consumers, producer_data_set=producers))


def heart_beat() -> RemotingCommand:
    groups = DEFAULTS.max_groups_per_client - 1
    body = _heartbeat("member-0", groups, DEFAULTS.max_subscriptions_per_heartbeat - 1, "a||b||c||d")
    return RemotingCommand.request(CODE.HEART_BEAT, body=body)


def locks(code: int) -> RemotingCommand:
    """As many queues as fit into a body."""
    queues, size = [], 100
    while size < MAX_JSON_BODY_SIZE - 100:
        queues.append(MessageQueue("t", "b", len(queues)))
        size += len(f'{{"topic":"t","brokerName":"b","queueId":{len(queues)}}},')
    body = encode_body(LockedQueues(client_id="c", consumer_group="g", mq_set=queues))
    return RemotingCommand.request(code, body=body)


def settings_text(code: int) -> RemotingCommand:
    """Sixteen megabytes of settings."""
    return RemotingCommand.request(code, body=b"x=1\n" * (4 << 20 >> 2) * 3)


def register(*, compressed: bool, version: int, topics: int = NAMESRV_TOPICS, broker: int = 0) -> RemotingCommand:
    names = (f"topic-{number}" for number in range(topics))
    table = {name: TopicConfig(topic_name=name, read_queue_nums=8, write_queue_nums=8) for name in names}
    wrapper = TopicConfigSerializeWrapper(
        data_version=DataVersion(counter=version, timestamp=version), topic_config_table=table
    )
    body = encode_registration(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper), compress=compressed)
    header = RegisterBrokerRequestHeader(
        broker_name=f"broker-{broker or 'a'}",
        broker_addr=f"127.0.0.1:{10911 + broker}",
        cluster_name="c",
        broker_id=0,
        compressed=str(compressed).lower(),
    )
    return RemotingCommand.request(CODE.REGISTER_BROKER, header, body)


def _request(code: int, header: Any = None, body: bytes = b"") -> Requests:
    return lambda: RemotingCommand.request(code, header, body)


LONG = "x" * 200_000
HANDLE = "0 1 1 0 0 broker-a 0 0"
POLICIES = AclInfo(
    subject="User:u",
    policies=[PolicyInfo(entries=[PolicyEntryInfo(resource="Topic:*", actions=["Pub"], decision="Allow")] * 2000)],
)

BROKER_REQUESTS: dict[int, Requests] = {
    CODE.SEND_MESSAGE_V2: lambda: send(BATCH_SIZE),
    CODE.SEND_MESSAGE: lambda: _old(send(BATCH_SIZE)),
    CODE.SEND_BATCH_MESSAGE: lambda: batch(1 << 30),
    CODE.PULL_MESSAGE: _request(
        CODE.PULL_MESSAGE,
        PullMessageRequestHeader(
            consumer_group="group-0",
            topic=WIDE,
            queue_id=1,
            queue_offset=0,
            max_msg_nums=10_000,
            sys_flag=SUBSCRIPTION,
            subscription=" AND ".join(f"a{number} = {number}" for number in range(250)),
            expression_type="SQL92",
        ),
    ),
    CODE.QUERY_MESSAGE: _request(
        CODE.QUERY_MESSAGE,
        QueryMessageRequestHeader(topic=WIDE, key="key", max_num=1 << 30, begin_timestamp=0, end_timestamp=1 << 60),
    ),
    CODE.QUERY_CONSUMER_OFFSET: _request(
        CODE.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetRequestHeader(consumer_group="g", topic=LONG, queue_id=0)
    ),
    CODE.UPDATE_CONSUMER_OFFSET: _request(
        CODE.UPDATE_CONSUMER_OFFSET,
        UpdateConsumerOffsetRequestHeader(consumer_group="group-0", topic=WIDE, queue_id=0, commit_offset=0),
    ),
    CODE.UPDATE_AND_CREATE_TOPIC: _request(
        CODE.UPDATE_AND_CREATE_TOPIC,
        CreateTopicRequestHeader(topic="Another", read_queue_nums=QUEUES, write_queue_nums=QUEUES, perm=6),
    ),
    CODE.GET_ALL_TOPIC_CONFIG: _request(CODE.GET_ALL_TOPIC_CONFIG),
    CODE.UPDATE_BROKER_CONFIG: lambda: settings_text(CODE.UPDATE_BROKER_CONFIG),
    CODE.GET_BROKER_CONFIG: _request(CODE.GET_BROKER_CONFIG),
    CODE.TRIGGER_DELETE_FILES: _request(CODE.TRIGGER_DELETE_FILES),
    CODE.GET_BROKER_RUNTIME_INFO: _request(CODE.GET_BROKER_RUNTIME_INFO),
    CODE.SEARCH_OFFSET_BY_TIMESTAMP: _request(
        CODE.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetRequestHeader(topic=WIDE, queue_id=1, timestamp=1)
    ),
    CODE.GET_MAX_OFFSET: _request(CODE.GET_MAX_OFFSET, QueueRequestHeader(topic=WIDE, queue_id=1)),
    CODE.GET_MIN_OFFSET: _request(CODE.GET_MIN_OFFSET, QueueRequestHeader(topic=WIDE, queue_id=1)),
    CODE.GET_EARLIEST_MSG_STORETIME: _request(
        CODE.GET_EARLIEST_MSG_STORETIME, QueueRequestHeader(topic=WIDE, queue_id=1)
    ),
    CODE.VIEW_MESSAGE_BY_ID: _request(CODE.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=0)),
    CODE.HEART_BEAT: heart_beat,
    CODE.CONSUMER_SEND_MSG_BACK: _request(
        CODE.CONSUMER_SEND_MSG_BACK, ConsumerSendMsgBackRequestHeader(offset=0, group="group-0", delay_level=1)
    ),
    CODE.GET_CONSUMER_LIST_BY_GROUP: _request(
        CODE.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListByGroupRequestHeader(consumer_group="group-0")
    ),
    CODE.LOCK_BATCH_MQ: lambda: locks(CODE.LOCK_BATCH_MQ),
    CODE.UNLOCK_BATCH_MQ: lambda: locks(CODE.UNLOCK_BATCH_MQ),
    CODE.GET_ALL_CONSUMER_OFFSET: _request(CODE.GET_ALL_CONSUMER_OFFSET),
    CODE.GET_ALL_DELAY_OFFSET: _request(CODE.GET_ALL_DELAY_OFFSET),
    CODE.CHECK_CLIENT_CONFIG: _request(
        CODE.CHECK_CLIENT_CONFIG,
        body=encode_body(
            CheckClientRequestBody(
                subscription_data=SubscriptionData(topic=WIDE, sub_string="||".join(map(str, range(2500))))
            )
        ),
    ),
    CODE.UPDATE_AND_CREATE_ACL_CONFIG: _request(
        CODE.UPDATE_AND_CREATE_ACL_CONFIG,
        CreateAccessConfigRequestHeader(access_key="a", topic_perms="a=PUB," * 30_000),
    ),
    CODE.DELETE_ACL_CONFIG: _request(CODE.DELETE_ACL_CONFIG, DeleteAccessConfigRequestHeader(access_key=LONG)),
    CODE.GET_BROKER_CLUSTER_ACL_INFO: _request(CODE.GET_BROKER_CLUSTER_ACL_INFO),
    CODE.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _request(
        CODE.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        UpdateGlobalWhiteAddrsConfigRequestHeader(global_white_addrs="10.0.0.1," * 20_000),
    ),
    CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _request(
        CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_body(SubscriptionGroupConfig(group_name="another"))
    ),
    CODE.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _request(CODE.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
    CODE.GET_TOPIC_STATS_INFO: _request(CODE.GET_TOPIC_STATS_INFO, TopicRequestHeader(topic=WIDE)),
    CODE.GET_CONSUMER_CONNECTION_LIST: _request(
        CODE.GET_CONSUMER_CONNECTION_LIST, GetConsumerConnectionListRequestHeader(consumer_group="group-0")
    ),
    CODE.GET_PRODUCER_CONNECTION_LIST: _request(
        CODE.GET_PRODUCER_CONNECTION_LIST, GetProducerConnectionListRequestHeader(producer_group="producers")
    ),
    CODE.GET_CONSUME_STATS: _request(CODE.GET_CONSUME_STATS, GetConsumeStatsRequestHeader(consumer_group="group-0")),
    CODE.INVOKE_BROKER_TO_RESET_OFFSET: _request(
        CODE.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetRequestHeader(topic=WIDE, group="group-0", timestamp=1)
    ),
    CODE.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _request(
        CODE.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, GetConsumerStatusRequestHeader(topic=WIDE, group="group-0")
    ),
    CODE.QUERY_TOPIC_CONSUME_BY_WHO: _request(CODE.QUERY_TOPIC_CONSUME_BY_WHO, TopicRequestHeader(topic=WIDE)),
    CODE.QUERY_CONSUME_TIME_SPAN: _request(
        CODE.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpanRequestHeader(topic=WIDE, group="group-0")
    ),
    CODE.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _request(CODE.GET_SYSTEM_TOPIC_LIST_FROM_BROKER),
    CODE.CLEAN_EXPIRED_CONSUMEQUEUE: _request(CODE.CLEAN_EXPIRED_CONSUMEQUEUE),
    CODE.GET_CONSUMER_RUNNING_INFO: _request(
        CODE.GET_CONSUMER_RUNNING_INFO, GetConsumerRunningInfoRequestHeader(consumer_group="group-0", client_id=LONG)
    ),
    CODE.QUERY_CORRECTION_OFFSET: _request(
        CODE.QUERY_CORRECTION_OFFSET,
        QueryCorrectionOffsetRequestHeader(topic=WIDE, compare_group="group-0", filter_groups="x," * 50_000),
    ),
    CODE.CONSUME_MESSAGE_DIRECTLY: _request(
        CODE.CONSUME_MESSAGE_DIRECTLY,
        ConsumeMessageDirectlyRequestHeader(consumer_group="group-0", client_id="nobody", msg_id="0" * 32),
    ),
    CODE.VIEW_BROKER_STATS_DATA: _request(
        CODE.VIEW_BROKER_STATS_DATA, ViewBrokerStatsDataRequestHeader(stats_name="TOPIC_PUT_NUMS", stats_key=WIDE)
    ),
    CODE.CLEAN_UNUSED_TOPIC: _request(CODE.CLEAN_UNUSED_TOPIC),
    CODE.GET_BROKER_CONSUME_STATS: _request(CODE.GET_BROKER_CONSUME_STATS, GetConsumeStatsInBrokerRequestHeader()),
    CODE.QUERY_CONSUME_QUEUE: _request(
        CODE.QUERY_CONSUME_QUEUE, QueryConsumeQueueRequestHeader(topic=WIDE, queue_id=1, index=0, count=1 << 30)
    ),
    CODE.SEND_REPLY_MESSAGE: lambda: _as(CODE.SEND_REPLY_MESSAGE, _old(send(BATCH_SIZE))),
    CODE.SEND_REPLY_MESSAGE_V2: lambda: _as(CODE.SEND_REPLY_MESSAGE_V2, send(BATCH_SIZE)),
    CODE.GET_ALL_PRODUCER_INFO: _request(CODE.GET_ALL_PRODUCER_INFO),
    CODE.DELETE_EXPIRED_COMMITLOG: _request(CODE.DELETE_EXPIRED_COMMITLOG),
    CODE.AUTH_CREATE_USER: _request(
        CODE.AUTH_CREATE_USER, UserRequestHeader(username="u"), encode_body(UserInfo(password="x" * (12 << 20)))
    ),
    CODE.AUTH_UPDATE_USER: _request(
        CODE.AUTH_UPDATE_USER, UserRequestHeader(username="u"), encode_body(UserInfo(password="x" * (12 << 20)))
    ),
    CODE.AUTH_DELETE_USER: _request(CODE.AUTH_DELETE_USER, UserRequestHeader(username=LONG)),
    CODE.AUTH_GET_USER: _request(CODE.AUTH_GET_USER, UserRequestHeader(username=LONG)),
    CODE.AUTH_LIST_USER: _request(CODE.AUTH_LIST_USER, ListUsersRequestHeader(filter=LONG)),
    CODE.AUTH_CREATE_ACL: _request(CODE.AUTH_CREATE_ACL, AclRequestHeader(subject="User:u"), encode_body(POLICIES)),
    CODE.AUTH_UPDATE_ACL: _request(CODE.AUTH_UPDATE_ACL, AclRequestHeader(subject="User:u"), encode_body(POLICIES)),
    CODE.AUTH_DELETE_ACL: _request(CODE.AUTH_DELETE_ACL, DeleteAclRequestHeader(subject=LONG)),
    CODE.AUTH_GET_ACL: _request(CODE.AUTH_GET_ACL, AclRequestHeader(subject=LONG)),
    CODE.AUTH_LIST_ACL: _request(CODE.AUTH_LIST_ACL, ListAclsRequestHeader(subject_filter=LONG)),
    CODE.QUERY_ASSIGNMENT: _request(
        CODE.QUERY_ASSIGNMENT,
        body=encode_body(QueryAssignmentRequestBody(topic=WIDE, consumer_group="group-0", client_id="member-1")),
    ),
    CODE.SET_MESSAGE_REQUEST_MODE: _request(
        CODE.SET_MESSAGE_REQUEST_MODE,
        body=encode_body(MessageRequestMode(topic=WIDE, consumer_group="group-0", mode="POP")),
    ),
    CODE.GET_ALL_MESSAGE_REQUEST_MODE: _request(CODE.GET_ALL_MESSAGE_REQUEST_MODE),
    CODE.POP_MESSAGE: _request(
        CODE.POP_MESSAGE,
        PopMessageRequestHeader(
            consumer_group="group-0", topic=WIDE, queue_id=-1, max_msg_nums=32, invisible_time=60_000, poll_time=0
        ),
    ),
    CODE.ACK_MESSAGE: _request(
        CODE.ACK_MESSAGE,
        AckMessageRequestHeader(consumer_group="group-0", topic=WIDE, queue_id=0, extra_info=HANDLE, offset=0),
    ),
    CODE.CHANGE_MESSAGE_INVISIBLETIME: _request(
        CODE.CHANGE_MESSAGE_INVISIBLETIME,
        ChangeInvisibleTimeRequestHeader(
            consumer_group="group-0", topic=WIDE, queue_id=0, extra_info=HANDLE, offset=0, invisible_time=1
        ),
    ),
    CODE.POLLING_INFO: _request(
        CODE.POLLING_INFO, PollingInfoRequestHeader(consumer_group="group-0", topic=WIDE, queue_id=-1)
    ),
    CODE.BATCH_ACK_MESSAGE: _request(
        CODE.BATCH_ACK_MESSAGE,
        body=encode_body(
            BatchAckMessageRequestBody(
                acks=[
                    BatchAck(
                        consumer_group="group-0",
                        topic=WIDE,
                        start_offset=0,
                        queue_id=0,
                        pop_time=1,
                        invisible_time=1,
                        bit_set=b"\xff" * (MAX_ACKS // 8) + bytes(MAX_BITS - MAX_ACKS // 8),
                    )
                ]
            )
        ),
    ),
    CODE.GET_POP_STATUS: _request(CODE.GET_POP_STATUS, PopStatusRequestHeader(consumer_group="group-0")),
    CODE.RELEASE_POP: _request(CODE.RELEASE_POP, ReleasePopRequestHeader(consumer_group="group-0", topic=WIDE)),
    CODE.GET_CHALLENGE: _request(CODE.GET_CHALLENGE),
    CODE.GET_ALL_QUEUE_LOCKS: _request(CODE.GET_ALL_QUEUE_LOCKS),
    CODE.GET_DIAGNOSIS: _request(CODE.GET_DIAGNOSIS),
    CODE.GET_PENDING_MESSAGES: _request(CODE.GET_PENDING_MESSAGES),
    CODE.GET_PROCESS_REPORT: _request(CODE.GET_PROCESS_REPORT),
    CODE.GET_HA_STATUS: _request(CODE.GET_HA_STATUS, HaStatusRequestHeader(count_from=0)),
    CODE.ASK_PROMISE: _request(
        CODE.ASK_PROMISE, AskPromiseRequestHeader(epoch=1 << 60, member=1, address=LONG, ha_address="")
    ),
    # These ask for a role of a broker that is refused, since it is the only one.
    CODE.PROMOTE_BROKER: _request(CODE.PROMOTE_BROKER, PromoteBrokerRequestHeader(epoch=1)),
    CODE.DEMOTE_BROKER: _request(CODE.DEMOTE_BROKER, DemoteBrokerRequestHeader()),
    CODE.SWITCH_OVER: _request(CODE.SWITCH_OVER, SwitchOverRequestHeader(target_addr=LONG, target_id=1)),
    # Requests that change what the ones before read.
    CODE.CLONE_GROUP_OFFSET: _request(
        CODE.CLONE_GROUP_OFFSET,
        CloneGroupOffsetRequestHeader(src_group="group-0", dest_group="another", offline="true"),
    ),
    CODE.DELETE_SUBSCRIPTIONGROUP: _request(
        CODE.DELETE_SUBSCRIPTIONGROUP,
        DeleteSubscriptionGroupRequestHeader(group_name="another", remove_offset="true"),
    ),
    CODE.DELETE_TOPIC_IN_BROKER: _request(CODE.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic="topic-1")),
    CODE.UNREGISTER_CLIENT: _request(
        CODE.UNREGISTER_CLIENT,
        UnregisterClientRequestHeader(client_id="member-0", producer_group="producers", consumer_group="group-0"),
    ),
    CODE.RESUME_CHECK_HALF_MESSAGE: _request(
        CODE.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHalfMessageRequestHeader(msg_id="7F00000100002A9F0000000000000000")
    ),
    CODE.RECALL_MESSAGE: _request(
        CODE.RECALL_MESSAGE,
        RecallMessageRequestHeader(
            topic="topic-1", recall_handle=str(RecallHandle("topic-1", "broker-a", 1 << 50, "k" * 30_000))
        ),
    ),
    CODE.END_TRANSACTION: _request(
        CODE.END_TRANSACTION,
        EndTransactionRequestHeader(
            producer_group="p", tran_state_table_offset=0, commit_log_offset=0, commit_or_rollback=8
        ),
    ),
}

BROKER_ADDRESS = BrokerRequestHeader(
    broker_name="broker-a", broker_addr="127.0.0.1:10911", cluster_name="c", broker_id=0
)
NAMESRV_REQUESTS: dict[int, Requests] = {
    CODE.GET_CHALLENGE: _request(CODE.GET_CHALLENGE),
    CODE.REGISTER_BROKER: lambda: register(compressed=False, version=1),
    CODE.QUERY_DATA_VERSION: _request(
        CODE.QUERY_DATA_VERSION, BROKER_ADDRESS, encode_body(DataVersion(counter=0, timestamp=0)) + b" " * (12 << 20)
    ),
    CODE.GET_ROUTEINFO_BY_TOPIC: _request(CODE.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic="topic-1")),
    CODE.GET_BROKER_CLUSTER_INFO: _request(CODE.GET_BROKER_CLUSTER_INFO),
    CODE.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _request(CODE.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
    CODE.GET_TOPICS_BY_CLUSTER: _request(CODE.GET_TOPICS_BY_CLUSTER, GetTopicsByClusterRequestHeader(cluster="c")),
    CODE.GET_SYSTEM_TOPIC_LIST_FROM_NS: _request(CODE.GET_SYSTEM_TOPIC_LIST_FROM_NS),
    CODE.GET_UNIT_TOPIC_LIST: _request(CODE.GET_UNIT_TOPIC_LIST),
    CODE.GET_HAS_UNIT_SUB_TOPIC_LIST: _request(CODE.GET_HAS_UNIT_SUB_TOPIC_LIST),
    CODE.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _request(CODE.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST),
    CODE.DELETE_TOPIC_IN_NAMESRV: _request(
        CODE.DELETE_TOPIC_IN_NAMESRV, DeleteTopicFromNamesrvRequestHeader(topic="topic-1")
    ),
    CODE.WIPE_WRITE_PERM_OF_BROKER: _request(
        CODE.WIPE_WRITE_PERM_OF_BROKER, WritePermOfBrokerRequestHeader(broker_name="broker-a")
    ),
    CODE.ADD_WRITE_PERM_OF_BROKER: _request(
        CODE.ADD_WRITE_PERM_OF_BROKER, WritePermOfBrokerRequestHeader(broker_name="broker-a")
    ),
    CODE.PUT_KV_CONFIG: _request(
        CODE.PUT_KV_CONFIG, PutKVConfigRequestHeader(namespace="n", key="k", value="x" * 10_000)
    ),
    CODE.GET_KV_CONFIG: _request(CODE.GET_KV_CONFIG, KVConfigRequestHeader(namespace="n", key="k")),
    CODE.GET_KVLIST_BY_NAMESPACE: _request(
        CODE.GET_KVLIST_BY_NAMESPACE, GetKVListByNamespaceRequestHeader(namespace="ORDER_TOPIC_CONFIG")
    ),
    CODE.DELETE_KV_CONFIG: _request(CODE.DELETE_KV_CONFIG, KVConfigRequestHeader(namespace="n", key="k")),
    CODE.GET_NAMESRV_CONFIG: _request(CODE.GET_NAMESRV_CONFIG),
    CODE.UPDATE_NAMESRV_CONFIG: lambda: settings_text(CODE.UPDATE_NAMESRV_CONFIG),
    CODE.UNREGISTER_BROKER: _request(CODE.UNREGISTER_BROKER, BROKER_ADDRESS),
}


def _old(command: RemotingCommand) -> RemotingCommand:
    """Return a send under its old code, with the long names of its fields."""
    from rucola.protocol.send import SendMessageRequestHeader

    header = command.decode_header(SendMessageRequestHeaderV2)
    fields = {name: getattr(header, name) for name in SendMessageRequestHeader.__struct_fields__}
    return RemotingCommand.request(CODE.SEND_MESSAGE, SendMessageRequestHeader(**fields), command.body)


def _as(code: int, command: RemotingCommand) -> RemotingCommand:
    command.code = code
    return command
