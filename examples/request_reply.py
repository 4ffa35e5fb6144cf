"""Send a request as a message and wait for the reply of its consumer.

It prints:

    How much is a pizza? Nine euros.
"""

import asyncio

from rucola.client import Message, MessageExt, Producer, PushConsumer


async def main() -> None:
    async with Producer("price-guests") as asker, Producer("price-waiters") as replier:

        async def answer(request: MessageExt) -> None:
            await replier.reply(request, b"Nine euros.")

        waiter = PushConsumer("price-waiters")
        waiter.subscribe("RequestedPrices")
        waiter.listen(answer)
        async with waiter:
            question = Message("RequestedPrices", b"How much is a pizza?")
            reply = await asker.request(question, timeout_ms=20_000)
            print(question.body.decode(), reply.body.decode())


asyncio.run(main())
