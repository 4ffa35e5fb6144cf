"""Deliver every message to every member of the group, with the offsets of each member in a file.

It prints:

    one: the kitchen is closed
    two: the kitchen is closed
"""

import asyncio
import tempfile
from pathlib import Path

from rucola.client import ClientInstance, ConsumeFromWhere, Message, MessageModel, Producer, PushConsumer


async def member(name: str, offsets: Path) -> str:
    # A fixed client id, so that the member finds its offset file after a restart; by default below ~/.rocketmq_offsets.
    async with ClientInstance(client_id=name) as instance:
        consumer = PushConsumer(
            "broadcast-waiters",
            instance=instance,
            message_model=MessageModel.BROADCASTING,
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,  # the default is the end
            offsets_root=offsets,
        )
        consumer.subscribe("BroadcastNews")
        async with consumer:
            async for message in consumer:
                consumer.ack(message)
                return f"{name}: {message.body.decode()}"
    raise AssertionError("the iteration ends only when the consumer closes")


async def main() -> None:
    async with Producer("office") as producer:
        await producer.send(Message("BroadcastNews", b"the kitchen is closed"))
    with tempfile.TemporaryDirectory() as offsets:
        for line in await asyncio.gather(*(member(name, Path(offsets)) for name in ("one", "two"))):
            print(line)


asyncio.run(main())
