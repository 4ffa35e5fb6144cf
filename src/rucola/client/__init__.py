"""Clients: producers and consumers, asyncio-native; `rucola.client.sync` has the same in plain blocking calls.

Reading order: `route` (where a topic lives), `instance` (one client as brokers see it), `producer`, `pull`,
`rebalance` and `process_queue` (pure), `push`, `transaction`, `sync`.
"""

from rucola.client.instance import ClientInstance
from rucola.client.producer import Producer, SendResult, SendStatus
from rucola.client.pull import PullConsumer, PullResult, PullStatus
from rucola.client.push import ConsumeFromWhere, PushConsumer
from rucola.client.transaction import LocalTransactionState, TransactionProducer, TransactionSendResult
from rucola.message import Message, MessageExt
from rucola.protocol.queue import MessageQueue

__all__ = [
    "ClientInstance",
    "ConsumeFromWhere",
    "LocalTransactionState",
    "Message",
    "MessageExt",
    "MessageQueue",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "SendResult",
    "SendStatus",
    "TransactionProducer",
    "TransactionSendResult",
]
