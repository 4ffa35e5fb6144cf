"""Consume by an asyncio listener, in up to twenty calls at a time; failed messages are retried.

It prints:

    try 0 of pasta failed
    pizza, pasta at try 1
"""

import asyncio

from rucola.client import Message, MessageExt, Producer, PushConsumer, ReconsumeLater


async def main() -> None:
    async with Producer("shop") as producer:
        for dish in (b"pizza", b"pasta"):
            await producer.send(Message("ListenerOrders", dish))

    cooked: asyncio.Queue[str] = asyncio.Queue()

    async def cook(message: MessageExt) -> None:
        if message.body == b"pasta" and message.reconsume_times == 0:
            print(f"try {message.reconsume_times} of pasta failed")
            # After any exception the message is retried: after 10 s, 30 s, a minute and so on, up to 16 times, and then
            # moved to the dead letter queue %DLQ%listener-kitchen. This exception chooses the delay level itself.
            raise ReconsumeLater(delay_level=1)
        await cooked.put(message.body.decode())

    consumer = PushConsumer("listener-kitchen")
    consumer.subscribe("ListenerOrders")
    consumer.listen(cook)
    async with consumer:
        print(f"{await cooked.get()}, {await cooked.get()} at try 1")


asyncio.run(main())
