"""SendMessage by gRPC: the broker's CPU time a call, beside a bare echo of grpc.aio with the same messages."""

from __future__ import annotations

import asyncio
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc.aio

from figures import Aim, Figure, median
from floors import Options
from rucola.protocol.grpc.definition_pb2 import Encoding, Message, MessageType, Resource, SystemProperties
from rucola.protocol.grpc.service_pb2 import SendMessageRequest, SendMessageResponse
from servers import Server, grpc_echo, standalone

STREAMS, CALLS = 16, 8_000
SEND = "/apache.rocketmq.v2.MessagingService/SendMessage"
METADATA = (
    ("x-mq-client-id", "bench@1"), ("x-mq-language", "PYTHON"), ("x-mq-protocol", "v2"),
    ("x-mq-client-version", "5.1.2"), ("x-mq-date-time", "20260301T101500Z"),
)  # fmt: skip
AIMS = (Aim("ratio", 0.5),)


def measure(options: Options) -> list[Figure]:
    """Alternate between both servers, with 16 calls at a time on one connection."""
    sends: list[float] = []
    echoes: list[float] = []
    count = options.count(CALLS)
    with (
        TemporaryDirectory(prefix="rucola-bench-") as name,
        standalone(Path(name) / "store") as broker,
        grpc_echo() as floor,
    ):
        for _ in range(options.rounds):
            echoes.append(asyncio.run(_drive(floor, f"127.0.0.1:{floor.port}", "/Echo/Echo", count)))
            sends.append(asyncio.run(_drive(broker, broker.grpc_endpoint, SEND, count)))
    ratios = [send / echo for send, echo in zip(sends, echoes, strict=True)]
    return [
        Figure(
            "grpc_send_16_streams", median(float, sends), "us", median(float, echoes), "echo by grpc.aio",
            ratios=ratios, aims=AIMS,
        )
    ]  # fmt: skip


async def _drive(server: Server, endpoint: str, method: str, count: int) -> float:
    """Return the microseconds of CPU that the server takes for a call."""
    system = SystemProperties(message_id="01" + "AB" * 16, message_type=MessageType.NORMAL, born_host="bench")
    system.body_encoding = Encoding.IDENTITY
    system.born_timestamp.FromMilliseconds(1_767_225_600_000)
    message = Message(topic=Resource(name="BenchGrpc"), body=bytes(200), system_properties=system)
    request = SendMessageRequest(messages=[message]).SerializeToString()
    async with grpc.aio.insecure_channel(endpoint) as channel:
        call = channel.unary_unary(method)
        answer = await call(request, metadata=METADATA)
        if method == SEND:
            assert SendMessageResponse.FromString(answer).status.code == 20000
        waiting = repeat(None, count)

        async def stream() -> None:
            for _ in waiting:  # all streams take from it
                await call(request, metadata=METADATA)

        begin_ns = server.cpu_ns()
        await asyncio.gather(*(stream() for _ in range(STREAMS)))
        return (server.cpu_ns() - begin_ns) / count / 1000
