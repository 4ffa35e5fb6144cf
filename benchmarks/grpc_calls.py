"""Calls by gRPC: CPU time of a broker beside a bare echo of grpc.aio; remoting beside them; memory of idle streams."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import count as numbers
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc.aio

import frames
from figures import Aim, Figure, median
from floors import Options
from load import Run, answer_to, drive
from rucola.protocol.grpc.definition_pb2 import Encoding, Message, MessageType, Resource, SystemProperties
from rucola.protocol.grpc.service_pb2 import (
    AckMessageEntry,
    AckMessageRequest,
    AckMessageResponse,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    SendMessageRequest,
    SendMessageResponse,
)
from servers import Server, grpc_echo, standalone

STREAMS, CALLS, BATCHES, REMOTING = 16, 4_000, 125, 8_000
IDLE, CONNECTIONS = 1_000, 4
SERVICE = "/apache.rocketmq.v2.MessagingService/"
TOPIC = Resource(name="BenchGrpc")
OK = 20000


def measure(options: Options) -> list[Figure]:
    """Alternate between all kinds of calls."""
    echoes: list[float] = []
    sends: list[float] = []
    receives: list[float] = []
    beside: list[float] = []
    p99_s: list[float] = []
    count, batches = options.count(CALLS), options.count(BATCHES)
    with (
        TemporaryDirectory(prefix="rucola-bench-") as name,
        standalone(Path(name) / "store") as broker,
        grpc_echo() as floor,
    ):
        answer_to(broker, frames.create_topic("BenchRemoting", frames.QUEUES))
        for number in range(options.rounds):
            echoes.append(asyncio.run(_echo(floor, count)))
            sends.append(asyncio.run(_send(broker, count)))
            receives.append(asyncio.run(_receive(broker, f"group{number}", batches)))
            ratio, p99 = _remoting_beside(broker, options.count(REMOTING), count, sends[-1])
            beside.append(ratio)
            p99_s.append(p99)
        memory = asyncio.run(_idle(broker))
    echo, floor_is = median(float, echoes), "echo by grpc.aio"
    return [
        Figure(
            "grpc_send_16_streams", median(float, sends), "µs CPU/call", echo, floor_is,
            ratios=[send / echo for send, echo in zip(sends, echoes, strict=True)], aims=(Aim("ratio", 0.5),),
        ),
        Figure(
            "grpc_receive_and_ack_32", median(float, receives), "µs CPU/message", echo, floor_is,
            ratios=[receive / echo for receive, echo in zip(receives, echoes, strict=True)],
            aims=(Aim("ratio", 0.15),),
        ),
        Figure(
            "remoting_beside_grpc", median(float, beside), "x the CPU alone", aims=(Aim("value", 1.05),),
            more={"p99_x_beside_remoting": median(float, p99_s)},
        ),
        Figure("grpc_1000_idle_streams", memory, "MB", aims=(Aim("value", 20),)),
    ]  # fmt: skip


def _metadata(number: int = 0) -> tuple[tuple[str, str], ...]:
    return (
        ("x-mq-client-id", "bench@1"), ("x-mq-language", "PYTHON"), ("x-mq-protocol", "v2"),
        ("x-mq-client-version", "5.1.2"), ("x-mq-date-time", "20260301T101500Z"),
        ("x-mq-request-id", f"{number:036}"),
    )  # fmt: skip


def _message() -> bytes:
    system = SystemProperties(message_id="01" + "AB" * 16, message_type=MessageType.NORMAL, born_host="bench")
    system.body_encoding = Encoding.IDENTITY
    system.born_timestamp.FromMilliseconds(1_767_225_600_000)
    message = Message(topic=TOPIC, body=bytes(200), system_properties=system)
    return SendMessageRequest(messages=[message]).SerializeToString()


async def _send(broker: Server, count: int) -> float:
    async with grpc.aio.insecure_channel(broker.grpc_endpoint) as channel:
        call, request = channel.unary_unary(f"{SERVICE}SendMessage"), _message()

        async def send(number: int) -> None:
            await call(request, metadata=_metadata(number))

        answer = SendMessageResponse.FromString(await call(request, metadata=_metadata()))
        assert answer.status.code == OK, answer
        return await _cost(broker, count, send)


async def _echo(floor: Server, count: int) -> float:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{floor.port}") as channel:
        call, request = channel.unary_unary("/Echo/Echo"), _message()

        async def send(number: int) -> None:
            await call(request, metadata=_metadata(number))

        await send(0)
        return await _cost(floor, count, send)


async def _cost(server: Server, count: int, act: Callable[[int], Awaitable[None]]) -> float:
    """Return the microseconds of CPU that the server takes for each act, STREAMS of them at a time."""
    waiting, number = repeat(None, count), numbers()

    async def stream() -> None:
        for _ in waiting:  # all streams take from it
            await act(next(number))

    begin_ns = server.cpu_ns()
    await asyncio.gather(*(stream() for _ in range(STREAMS)))
    return (server.cpu_ns() - begin_ns) / count / 1000


async def _receive(broker: Server, group: str, batches: int) -> float:
    """Return the microseconds of CPU per message that is received in a batch of 32 and acknowledged with it."""
    name = Resource(name=group)
    async with grpc.aio.insecure_channel(broker.grpc_endpoint) as channel:
        receive: Any = channel.unary_stream(f"{SERVICE}ReceiveMessage", None, ReceiveMessageResponse.FromString)
        ack: Any = channel.unary_unary(f"{SERVICE}AckMessage", None, AckMessageResponse.FromString)
        request = _receive_request(name).SerializeToString()
        received = 0
        begin_ns = broker.cpu_ns()
        for number in range(batches):
            entries = [
                AckMessageEntry(message_id="m", receipt_handle=answer.message.system_properties.receipt_handle)
                async for answer in receive(request, metadata=_metadata(number))
                if answer.HasField("message")
            ]
            content = AckMessageRequest(group=name, topic=TOPIC, entries=entries).SerializeToString()
            answer = await ack(content, metadata=_metadata(number))
            assert answer.status.code == OK, answer
            received += len(entries)
        cost = (broker.cpu_ns() - begin_ns) / received / 1000
        assert received > batches * 24
        return cost


def _receive_request(group: Resource) -> ReceiveMessageRequest:
    request = ReceiveMessageRequest(group=group, batch_size=32, auto_renew=True)
    request.message_queue.topic.name = TOPIC.name
    return request


def _remoting_beside(broker: Server, count: int, calls: int, call_us: float) -> tuple[float, float]:
    """Return ratios of sends by remoting beside gRPC: CPU to those alone, p99 to those beside as much remoting."""
    sends = [frames.send("BenchRemoting", number) for number in range(1024)]
    alone = drive(broker, sends, count)
    begin_ns = broker.cpu_ns()
    run = _beside(_grpc_load, (broker, calls), lambda: drive(broker, sends, count))
    cpu_us = (broker.cpu_ns() - begin_ns) / 1000 - call_us * calls
    others = int(calls * call_us / alone.cpu_us)
    other = _beside(_remoting_load, (broker, sends, others), lambda: drive(broker, sends, count))
    return cpu_us / count / alone.cpu_us, run.latency_ms(99) / other.latency_ms(99)


def _beside(load: Callable[..., None], arguments: tuple[Any, ...], act: Callable[[], Run]) -> Run:
    process = multiprocessing.get_context("fork").Process(target=load, args=arguments)
    process.start()
    run = act()
    process.join()
    if process.exitcode:
        raise RuntimeError("the load beside ended with an error")
    return run


def _grpc_load(broker: Server, calls: int) -> None:
    asyncio.run(_send(broker, calls))


def _remoting_load(broker: Server, sends: list[bytes], calls: int) -> None:
    drive(broker, sends, calls, in_flight=STREAMS)


async def _idle(broker: Server) -> float:
    """Return the megabytes of memory that receives which wait for messages take."""
    before = broker.memory()["anonymous"]
    request = _receive_request(Resource(name="idle"))
    request.message_queue.topic.name = "BenchRemoting"
    request.filter_expression.expression = "none"
    async with AsyncExitStack() as stack:
        calls = []
        for _ in range(CONNECTIONS):
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(broker.grpc_endpoint))
            receive: Any = channel.unary_stream(f"{SERVICE}ReceiveMessage")
            calls += [receive(request.SerializeToString(), metadata=_metadata(n)) for n in range(IDLE // CONNECTIONS)]
            await channel.channel_ready()
        await asyncio.sleep(5)  # until they have arrived
        memory = broker.memory()["anonymous"]
        assert not any(call.done() for call in calls)
        for call in calls:
            call.cancel()
    return memory - before
