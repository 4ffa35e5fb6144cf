"""ConsumerContext: what all parts of one push consumer share."""

from __future__ import annotations

import msgspec

from rucola.client.background_tasks import BackgroundTasks
from rucola.client.consumer.options import ConsumeOptions
from rucola.client.instance import ClientInstance
from rucola.domain.subscription import SubscriptionData
from rucola.message.topics import retry_topic


class ConsumerContext(msgspec.Struct, frozen=True):
    """The identity, settings and background tasks of one push consumer."""

    group: str
    instance: ClientInstance
    options: ConsumeOptions
    background: BackgroundTasks
    """The tasks that run while the consumer is open."""
    subscriptions: dict[str, SubscriptionData]
    """By topic, including the retry topic. Only the consumer itself changes them."""

    @property
    def retry_topic(self) -> str:
        return retry_topic(self.group)
