"""Divide the queues of a topic among the members of a group, here by a consistent hash.

It prints:

    two members share 4 queues
"""

import asyncio

from rucola.client import ClientInstance, Message, Producer, PushConsumer
from rucola.domain.allocation import consistent_hash


async def main() -> None:
    async with Producer("shop") as producer:
        await producer.send(Message("SharedOrders", b"one pizza"))
    async with ClientInstance(client_id="cook-1") as first, ClientInstance(client_id="cook-2") as second:
        # All members of a group need the same strategy; `average` is the default, as in Apache's clients.
        cooks = [PushConsumer("sharing-kitchen", instance=cook, strategy=consistent_hash()) for cook in (first, second)]
        for cook in cooks:
            cook.subscribe("SharedOrders")
        async with cooks[0], cooks[1]:
            # The first cook had all queues and gives some up, or none: on a ring of few points one may get everything.
            while cooks[0].queues & cooks[1].queues:
                await cooks[0].rebalanced()
            print(f"two members share {len(cooks[0].queues | cooks[1].queues)} queues")


asyncio.run(main())
