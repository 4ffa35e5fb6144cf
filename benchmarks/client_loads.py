"""One way to use one client, measured: client_loads.py CLIENT ADDRESS WAY COUNT PID...

Prints the CPU time of this process and of the server's processes PID, in µs per message of 1 KB; nothing if the client
has no such way. Runs with the peers'
clients in an environment of their own, so it imports nothing of this folder.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

TOPIC, BODY = "BenchClients", os.urandom(1024)
TASKS, BATCH = 64, 32

Load = Callable[[int], Awaitable[object]]


def loads_of_sends(send: Callable[[], Awaitable[object]]) -> dict[str, Load]:
    """The ways that need nothing but the call that sends a message and waits for its acknowledgement."""

    async def one_by_one(count: int) -> None:
        for _ in range(count):
            await send()

    async def tasks(count: int) -> None:
        await asyncio.gather(*(one_by_one(count // TASKS) for _ in range(TASKS)))

    return {"one_by_one": one_by_one, "64_tasks": tasks}


async def rucola(address: str, stack: AsyncExitStack, linger_ms: float | None = None) -> dict[str, Load]:
    from rucola.client import ConsumeFromWhere, Message, Producer, PushConsumer

    producer = await stack.enter_async_context(Producer("bench", address, linger_ms=linger_ms))

    async def stream(count: int) -> None:
        async for _ in producer.send_many(Message(TOPIC, BODY) for _ in range(count)):
            pass

    async def batches(count: int) -> None:
        for _ in range(count // BATCH):
            await producer.send_batch([Message(TOPIC, BODY) for _ in range(BATCH)])

    async def consume(count: int, kind: str) -> None:
        consumer = PushConsumer(f"bench-{kind}", address, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        consumer.subscribe(TOPIC)
        left, done, loop = count, asyncio.Event(), asyncio.get_running_loop()

        def plain(message: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                loop.call_soon_threadsafe(done.set)

        async def coroutine(message: object) -> None:
            plain(message)

        if kind != "iterate":
            consumer.listen(plain if kind == "plain" else coroutine)
            async with consumer:
                await done.wait()
            return
        async with consumer:
            async for message in consumer:
                plain(message)
                if not left:
                    consumer.ack(message)
                    break

    return {
        **loads_of_sends(lambda: producer.send(Message(TOPIC, BODY))),
        "stream": stream,
        "batches": batches,
        "iterate": lambda count: consume(count, "iterate"),
        "listener": lambda count: consume(count, "coroutine"),
        "plain_listener": lambda count: consume(count, "plain"),
    }


async def rucola_linger(address: str, stack: AsyncExitStack) -> dict[str, Load]:
    return await rucola(address, stack, linger_ms=0)


async def redis(address: str, stack: AsyncExitStack) -> dict[str, Load]:
    from redis.asyncio import Redis

    client: Any = await stack.enter_async_context(Redis.from_url(f"redis://{address}"))

    async def batches(count: int) -> None:
        for _ in range(count // BATCH):
            pipeline = client.pipeline(transaction=False)
            for _ in range(BATCH):
                pipeline.xadd(TOPIC, {"body": BODY})
            await pipeline.execute()

    async def iterate(count: int) -> None:
        await client.xgroup_create(TOPIC, "bench", "0")
        while count > 0:
            (_, messages), *_ = await client.xreadgroup("bench", "one", {TOPIC: ">"}, count=4 * BATCH)
            await client.xack(TOPIC, "bench", *(number for number, _ in messages))
            count -= len(messages)

    sends = loads_of_sends(lambda: client.xadd(TOPIC, {"body": BODY}))
    return {**sends, "batches": batches, "iterate": iterate}


async def nats(address: str, stack: AsyncExitStack) -> dict[str, Load]:
    from nats import connect

    client = await connect(f"nats://{address}")
    stack.push_async_callback(client.close)
    stream: Any = client.jetstream()
    await stream.add_stream(name=TOPIC, subjects=[TOPIC])

    async def stream_of(count: int) -> None:
        window: deque[Any] = deque()
        for _ in range(count):
            if len(window) == TASKS:
                await window.popleft()
            window.append(await stream.publish_async(TOPIC, BODY))
        for pending in window:
            await pending

    async def iterate(count: int) -> None:
        subscription = await stream.pull_subscribe(TOPIC, "bench")
        while count > 0:
            for message in await subscription.fetch(BATCH):
                await message.ack()
                count -= 1

    return {**loads_of_sends(lambda: stream.publish(TOPIC, BODY)), "stream": stream_of, "iterate": iterate}


async def rabbitmq(address: str, stack: AsyncExitStack) -> dict[str, Load]:
    from aio_pika import DeliveryMode, Message, connect

    connection: Any = await stack.enter_async_context(await connect(f"amqp://{address}"))
    channel = await connection.channel(publisher_confirms=True)
    await channel.set_qos(prefetch_count=1000)
    queue = await channel.declare_queue(TOPIC, durable=True)

    async def iterate(count: int) -> None:
        async with queue.iterator() as messages:
            async for message in messages:
                await message.ack()
                count -= 1
                if not count:
                    break

    def send() -> Awaitable[object]:
        message = Message(BODY, delivery_mode=DeliveryMode.PERSISTENT)
        publish: Awaitable[object] = channel.default_exchange.publish(message, TOPIC)
        return publish

    return {**loads_of_sends(send), "iterate": iterate}


CLIENTS = {each.__name__: each for each in (rucola, rucola_linger, redis, nats, rabbitmq)}


async def main(client: str, address: str, way: str, count: int, pids: list[int]) -> None:
    def cpu_ns() -> tuple[int, int]:
        # The clock ids of other processes as by clock_getcpuclockid(3).
        return time.process_time_ns(), sum(map(time.clock_gettime_ns, (~pid << 3 | 2 for pid in pids)))

    async with AsyncExitStack() as stack:
        loads = await CLIENTS[client](address, stack)
        if way not in loads:
            return
        if way in ("iterate", "listener", "plain_listener"):
            await loads.get("batches", loads["64_tasks"])(count + TASKS)  # the backlog
        else:
            await loads[way](10 * TASKS)
        before = cpu_ns()
        await loads[way](count)
        print(*((now - then) / count / 1e3 for now, then in zip(cpu_ns(), before, strict=True)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), list(map(int, sys.argv[5:]))))
