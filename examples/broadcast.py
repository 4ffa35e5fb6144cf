"""Every member of the group gets every message, and keeps its own place in a file.

It prints:

    one: the kitchen is closed
    two: the kitchen is closed
"""

import asyncio
import tempfile
from pathlib import Path

from rucola.client import ClientInstance, ConsumeFromWhere, Message, MessageModel, Producer, PushConsumer


async def member(name: str, offsets: Path) -> str:
    # A client id that stays the same, so that the member finds its offsets again, here below a directory of its own
    # and else below ~/.rocketmq_offsets.
    async with ClientInstance(client_id=name) as instance:
        consumer = PushConsumer(
            "waiters",
            instance=instance,
            message_model=MessageModel.BROADCASTING,
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,  # by default it hears what comes from now on
            offsets_root=offsets,
        )
        consumer.subscribe("News")
        async with consumer:
            message = await anext(consumer.messages())
            return f"{name}: {message.body.decode()}"


async def main() -> None:
    async with Producer("office") as producer:
        await producer.send(Message("News", b"the kitchen is closed"))
    with tempfile.TemporaryDirectory() as offsets:
        for line in await asyncio.gather(*(member(name, Path(offsets)) for name in ("one", "two"))):
            print(line)


asyncio.run(main())
