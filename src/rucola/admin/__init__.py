"""Administration of name servers and brokers: typed requests that return values and print nothing.

`AdminClient` has one part for each subject; `client` lists them.
"""

from rucola.admin.client import AdminClient
from rucola.admin.dead_letters import DeadLetter, DeadLetterStats
from rucola.admin.message_track import MessageTrack, TrackType
from rucola.admin.name_servers import parse_order_conf
from rucola.admin.offsets import ResetResult
from rucola.admin.queries import MAX_LONG, PAGE, KeyQueryResult
from rucola.admin.queue_reader import TOOLS_GROUP, read_queue
from rucola.admin.redrive import REDRIVE_GROUP, AfterRedrive, RedriveResult, RedriveStatus
from rucola.admin.traces import MessageTraceView, TracedDelivery
from rucola.admin.traffic import GroupTraffic, TopicTraffic, Traffic
from rucola.domain.client import ConsumerConnection
from rucola.domain.diagnosis import Finding
from rucola.domain.group import LATEST, SubscriptionGroupConfig
from rucola.domain.queue import MessageQueue
from rucola.domain.statistics import ConsumeStats, OffsetWrapper
from rucola.domain.topic import TopicConfig
from rucola.message import MessageExt
from rucola.message.topics import TRACE_TOPIC, dlq_topic, retry_topic
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import version_text
from rucola.protocol.connections import ConsumerRunningInfo

__all__ = [
    "LATEST",
    "MAX_LONG",
    "PAGE",
    "REDRIVE_GROUP",
    "TOOLS_GROUP",
    "TRACE_TOPIC",
    "AdminClient",
    "AfterRedrive",
    "ConsumeStats",
    "ConsumerConnection",
    "ConsumerRunningInfo",
    "DeadLetter",
    "DeadLetterStats",
    "Finding",
    "GroupTraffic",
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
    "parse_order_conf",
    "read_queue",
    "retry_topic",
    "version_text",
]
