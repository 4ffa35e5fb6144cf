"""Clients: producers and consumers, asyncio-native; `rucola.client.sync` has the same in plain blocking calls.

Reading order: `route` (where a topic lives), `lifecycle` (how clients are opened and closed), `instance` (one client as
brokers see it), `parcel`, `producer`, `transaction`, `pull`; then `push` and what it is made of: `rebalance` and
`process_queue` (pure), `own_queue`, `share` with `locks` and `offsets`, `pulling`, `line`, `listener`, `listening`,
`returns`; then `stats`, `metrics`, `sync`.
"""

from rucola.client.consume_options import ConsumeFromWhere, MessageModel
from rucola.client.instance import ClientInstance
from rucola.client.listener import ReconsumeLater, SuspendCurrentQueueAMoment
from rucola.client.parcel import SendResult, SendStatus
from rucola.client.process_queue import PullLimits
from rucola.client.producer import Producer
from rucola.client.pull import PullConsumer, PullResult, PullStatus
from rucola.client.push import PushConsumer
from rucola.client.selectors import select_by_hash, select_by_machine_room, select_by_random
from rucola.client.stats import ConsumerStats, Durations, ProducerStats
from rucola.client.transaction import LocalTransactionState, TransactionProducer, TransactionSendResult
from rucola.message import Message, MessageExt
from rucola.protocol.queue import MessageQueue

__all__ = [
    "ClientInstance",
    "ConsumeFromWhere",
    "ConsumerStats",
    "Durations",
    "LocalTransactionState",
    "Message",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "Producer",
    "ProducerStats",
    "PullConsumer",
    "PullLimits",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "ReconsumeLater",
    "SendResult",
    "SendStatus",
    "SuspendCurrentQueueAMoment",
    "TransactionProducer",
    "TransactionSendResult",
    "select_by_hash",
    "select_by_machine_room",
    "select_by_random",
]
