"""Send with the asyncio client: one message, several concurrently, and a stream.

It prints:

    1 + 3 + 1000 stored
"""

import asyncio

from rucola.client import Message, Producer


async def main() -> None:
    async with Producer("shop") as producer:
        first = await producer.send(Message("SentAsyncOrders", b"one pizza"))
        several = await asyncio.gather(*(producer.send(Message("SentAsyncOrders", b"a pizza more")) for _ in range(3)))
        # Many requests in flight on one connection. Results come in order, and `orders` is read no faster.
        orders = (Message("SentAsyncOrders", f"pizza {number}".encode()) for number in range(1000))
        many = await producer.send_many(orders)
    assert all(result.is_ok for result in [first, *several, *many])
    print(f"1 + {len(several)} + {len(many)} stored")


asyncio.run(main())
