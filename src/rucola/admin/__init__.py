"""Administration: what an operator asks of name servers and brokers, as typed methods that print nothing."""

from rucola.admin.client import AdminClient
from rucola.admin.cluster import order_conf
from rucola.admin.dead_letters import REDRIVE_GROUP, DeadLetter, DeadLetterStats, RedriveResult, RedriveStatus
from rucola.admin.groups import ResetResult
from rucola.admin.messages import MessageTrack, TrackType
from rucola.admin.monitor import Finding
from rucola.admin.queries import MAX_LONG, PAGE, KeyQuery, KeyQueryResult
from rucola.admin.queue_reader import TOOLS_GROUP, read_queue
from rucola.admin.traces import MessageTraceView, TracedDelivery
from rucola.admin.traffic import GroupTraffic, TopicTraffic, Traffic
from rucola.message import MessageExt
from rucola.message.topics import TRACE_TOPIC, dlq_topic, retry_topic
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import version_text
from rucola.protocol.connections import ConsumerConnection, ConsumerRunningInfo
from rucola.protocol.group import LATEST
from rucola.protocol.queue import MessageQueue
from rucola.protocol.topic import ConsumeStats, OffsetWrapper, SubscriptionGroupConfig, TopicConfig

__all__ = [
    "LATEST",
    "MAX_LONG",
    "PAGE",
    "REDRIVE_GROUP",
    "TOOLS_GROUP",
    "TRACE_TOPIC",
    "AdminClient",
    "ConsumeStats",
    "ConsumerConnection",
    "ConsumerRunningInfo",
    "DeadLetter",
    "DeadLetterStats",
    "Finding",
    "GroupTraffic",
    "KeyQuery",
    "KeyQueryResult",
    "MessageExt",
    "MessageQueue",
    "MessageTraceView",
    "MessageTrack",
    "OffsetWrapper",
    "RedriveResult",
    "RedriveStatus",
    "ResetResult",
    "ResponseCode",
    "SubscriptionGroupConfig",
    "TopicConfig",
    "TopicTraffic",
    "TracedDelivery",
    "TrackType",
    "Traffic",
    "dlq_topic",
    "order_conf",
    "read_queue",
    "retry_topic",
    "version_text",
]
