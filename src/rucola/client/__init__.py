"""Clients: producers and consumers, asyncio-native; `rucola.client.sync` has the same in plain blocking calls.

Reading order: `route` (where a topic lives), `instance` (one client as brokers see it), `producer`, `pull`,
`rebalance` and `process_queue` (pure), `push`, `sync`.
"""

from rucola.client.instance import ClientInstance
from rucola.client.producer import Producer, SendResult, SendStatus
from rucola.client.pull import PullConsumer, PullResult, PullStatus
from rucola.client.push import ConsumeFromWhere, PushConsumer

__all__ = [
    "ClientInstance",
    "ConsumeFromWhere",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "SendResult",
    "SendStatus",
]
