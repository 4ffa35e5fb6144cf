"""Keep messages in order by a sharding key: one key goes to one queue, which is consumed in order.

It prints:

    order-1: placed, paid, shipped
    order-2: placed, paid, shipped
    order-3: placed, paid, shipped
"""

import asyncio
from collections import defaultdict

from rucola.client import Message, MessageExt, Producer, PushConsumer, select_by_hash


async def main() -> None:
    orders = [f"order-{number}" for number in (1, 2, 3)]
    async with Producer("shop") as producer:
        for step in ("placed", "paid", "shipped"):
            for order in orders:
                await producer.send(Message("OrderedSteps", step.encode(), keys=order), select_by_hash(order))

    steps: defaultdict[str, list[str]] = defaultdict(list)
    complete = asyncio.Event()

    async def listen(message: MessageExt) -> None:
        """Called for one message of a queue at a time. An exception suspends the queue before the retry."""
        steps[message.keys or ""].append(message.body.decode())
        if sum(map(len, steps.values())) == 9:
            complete.set()

    consumer = PushConsumer("ordered-kitchen", orderly=True)
    consumer.subscribe("OrderedSteps")
    consumer.listen(listen)
    async with consumer:
        await complete.wait()
    for order in orders:
        print(f"{order}: {', '.join(steps[order])}")


asyncio.run(main())
