"""Administration: what an operator asks of name servers and brokers, as typed methods that print nothing."""

from rucola.admin.client import AdminClient
from rucola.admin.cluster import order_conf
from rucola.admin.groups import ResetResult
from rucola.admin.messages import PAGE, KeyQueryResult, MessageTrack, TrackType
from rucola.admin.traffic import GroupTraffic, TopicTraffic, Traffic
from rucola.message import MessageExt
from rucola.message.topics import dlq_topic, retry_topic
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import version_text
from rucola.protocol.connections import ConsumerConnection, ConsumerRunningInfo
from rucola.protocol.group import LATEST
from rucola.protocol.queue import MessageQueue
from rucola.protocol.topic import ConsumeStats, OffsetWrapper, SubscriptionGroupConfig, TopicConfig

__all__ = [
    "LATEST",
    "PAGE",
    "AdminClient",
    "ConsumeStats",
    "ConsumerConnection",
    "ConsumerRunningInfo",
    "GroupTraffic",
    "KeyQueryResult",
    "MessageExt",
    "MessageQueue",
    "MessageTrack",
    "OffsetWrapper",
    "ResetResult",
    "ResponseCode",
    "SubscriptionGroupConfig",
    "TopicConfig",
    "TopicTraffic",
    "TrackType",
    "Traffic",
    "dlq_topic",
    "order_conf",
    "retry_topic",
    "version_text",
]
