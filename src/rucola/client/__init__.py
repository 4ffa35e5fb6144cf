"""Asyncio producers and consumers; `rucola.client.sync` has the same as blocking clients.

Reading order: `route`, `lifecycle`, `instance`, `group_client`; the packages `producer` and `consumer`.
"""

from rucola.acl.credentials import Credentials
from rucola.client.connection_options import ConnectionOptions
from rucola.client.consumer.listener import (
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    ReconsumeLater,
    SuspendCurrentQueueAMoment,
)
from rucola.client.consumer.options import ConsumeFromWhere, ConsumeKeywords, ConsumeOptions, MessageModel
from rucola.client.consumer.process_queue import PullLimits
from rucola.client.consumer.pull_consumer import PullConsumer, PullResult, PullStatus
from rucola.client.consumer.push_consumer import PushConsumer
from rucola.client.consumer.simple_consumer import SimpleConsumer
from rucola.client.instance import ClientInstance
from rucola.client.producer.options import ProducerKeywords, ProducerOptions
from rucola.client.producer.producer import Producer
from rucola.client.producer.queue_selectors import (
    select_by_hash,
    select_by_id,
    select_by_machine_room,
    select_by_random,
)
from rucola.client.producer.send_request import SendResult, SendStatus
from rucola.client.producer.transaction import LocalTransactionState, TransactionProducer, TransactionSendResult
from rucola.client.router import Publisher, Router
from rucola.client.stats import ConsumerStats, Durations, ProducerStats
from rucola.client.values import ValueCodec
from rucola.domain.queue import MessageQueue
from rucola.errors import (
    BrokerError,
    ConfigError,
    InvalidBody,
    InvalidExpression,
    InvalidMessage,
    MQError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeout,
    SendFailed,
    TopicNotFound,
)
from rucola.message import Message, MessageExt
from rucola.remoting.tls import ClientTls

__all__ = [
    "BrokerError",
    "ClientInstance",
    "ClientTls",
    "ConfigError",
    "ConnectionOptions",
    "ConsumeConcurrentlyStatus",
    "ConsumeFromWhere",
    "ConsumeKeywords",
    "ConsumeOptions",
    "ConsumeOrderlyStatus",
    "ConsumerStats",
    "Credentials",
    "Durations",
    "InvalidBody",
    "InvalidExpression",
    "InvalidMessage",
    "LocalTransactionState",
    "MQError",
    "Message",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "Producer",
    "ProducerKeywords",
    "ProducerOptions",
    "ProducerStats",
    "Publisher",
    "PullConsumer",
    "PullLimits",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "ReconsumeLater",
    "RemotingConnectError",
    "RemotingError",
    "RemotingTimeout",
    "Router",
    "SendFailed",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "SuspendCurrentQueueAMoment",
    "TopicNotFound",
    "TransactionProducer",
    "TransactionSendResult",
    "ValueCodec",
    "select_by_hash",
    "select_by_id",
    "select_by_machine_room",
    "select_by_random",
]
