"""Trace sends and deliveries for `rucola admin queryMsgTraceById` and Apache's dashboard.

It prints:

    consumed one pizza
"""

import asyncio

from rucola.client import Message, MessageExt, Producer, PushConsumer
from rucola.client.trace import MessageTrace


async def main() -> None:
    async with MessageTrace() as trace:
        async with Producer("shop", trace=trace) as producer:
            await producer.send(Message("TracedOrders", b"one pizza", keys="order-1"))

        consumed = asyncio.Event()

        async def cook(message: MessageExt) -> None:
            print("consumed", message.body.decode())
            consumed.set()

        consumer = PushConsumer("traced-kitchen", trace=trace)
        consumer.subscribe("TracedOrders")
        consumer.listen(cook)
        async with consumer:
            await consumed.wait()


asyncio.run(main())
