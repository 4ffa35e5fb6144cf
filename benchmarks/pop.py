"""POP beside pulls, in CPU time per message: of a broker with bare requests, and of a push consumer and its broker."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import frames
from figures import Aim, Figure, median
from floors import Options
from load import READ_SIZE
from rucola.client import ConsumeFromWhere, PushConsumer
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import Header, RemotingCommand
from rucola.protocol.frame import FrameDecoder
from rucola.protocol.offset import UpdateConsumerOffsetRequestHeader
from rucola.protocol.pop import BatchAck, BatchAckMessageRequestBody, PopMessageRequestHeader, PopMessageResponseHeader
from rucola.protocol.pull import PullMessageRequestHeader, PullMessageResponseHeader
from servers import Server, standalone
from stored import check_stored, fill

TOPIC = "BenchPop"
STORED = 32 * 2048
BATCHES = 1_000
CONSUMED = 30_000
AIMS = (Aim("ratio", 1.3),)


def measure(options: Options) -> list[Figure]:
    """Read the same messages in both ways by turns, by a new group each time. The first round is a warm-up."""
    pops: list[float] = []
    pulls: list[float] = []
    consumers: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    count = options.count(BATCHES)
    with TemporaryDirectory(prefix="rucola-bench-") as folder, standalone(Path(folder)) as broker:
        fill(broker, TOPIC, STORED)
        check_stored(broker, TOPIC, STORED)
        for number in range(options.rounds + 1):
            for consume, costs in ((_pull, pulls), (_pop, pops)):
                with socket.create_connection(("127.0.0.1", broker.port)) as connection:
                    begin_ns = broker.cpu_ns()
                    consume(_Caller(connection), f"{consume.__name__}{number}", count)
                    costs.append((broker.cpu_ns() - begin_ns) / count / frames.BATCH_COUNT / 1000)
            for is_pop, ends in consumers.items():
                ends.append(
                    asyncio.run(_push_consumer(broker, f"push{is_pop}{number}", is_pop, options.count(CONSUMED)))
                )
    del pops[0], pulls[0], consumers[True][0], consumers[False][0]
    by_pop, by_pull = ([sum(each) for each in consumers[is_pop]] for is_pop in (True, False))
    return [
        Figure(
            "pop_and_ack_32", median(float, pops), "µs CPU/message", median(float, pulls),
            "pull of 32 and commit of the offset", ratios=[pop / pull for pop, pull in zip(pops, pulls, strict=True)],
            aims=AIMS, more={"least_µs": min(pops), "least_µs_of_pull": min(pulls)},
        ),
        Figure(
            "pop_push_consumer", median(float, by_pop), "µs CPU/message of client and broker", median(float, by_pull),
            "a push consumer that pulls", ratios=[pop / pull for pop, pull in zip(by_pop, by_pull, strict=True)],
            aims=AIMS,
            more={
                "least_µs": min(by_pop),
                "least_µs_of_pull": min(by_pull),
                "client_µs": min(client for client, _ in consumers[True]),
                "client_µs_of_pull": min(client for client, _ in consumers[False]),
            },
        ),
    ]  # fmt: skip


async def _push_consumer(broker: Server, group: str, is_pop: bool, count: int) -> tuple[float, float]:
    """Return the microseconds of CPU per message in this process and in the broker, with a coroutine as listener."""
    consumer = PushConsumer(group, broker.namesrv, pop=is_pop, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe(TOPIC)
    left, done = count, asyncio.Event()

    async def listen(message: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    consumer.listen(listen)
    begins = time.process_time_ns(), broker.cpu_ns()
    async with consumer:
        await done.wait()
        ends = time.process_time_ns(), broker.cpu_ns()
    client, server = ((end - begin) / count / 1000 for begin, end in zip(begins, ends, strict=True))
    return client, server


class _Caller:
    """Sends a request, and returns its response."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._decoder = FrameDecoder()

    def __call__(self, code: RequestCode, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
        self._connection.sendall(RemotingCommand.request(code, header, body).encode())
        while not (answers := self._decoder.receive_data(self._connection.recv(READ_SIZE))):
            pass
        if answers[0].code != ResponseCode.SUCCESS:
            raise RuntimeError(f"the server refused: {answers[0]}")
        return answers[0]


def _pull(call: _Caller, group: str, count: int) -> None:
    offset = queue_id = 0
    for _ in range(count):
        answer = call(
            RequestCode.PULL_MESSAGE,
            PullMessageRequestHeader(
                consumer_group=group, topic=TOPIC, queue_id=queue_id, queue_offset=offset, max_msg_nums=32,
                sys_flag=4, suspend_timeout_millis=0, subscription="*", expression_type="TAG",
            ),
        )  # fmt: skip
        offset = answer.decode_header(PullMessageResponseHeader).next_begin_offset
        call(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            UpdateConsumerOffsetRequestHeader(
                consumer_group=group, topic=TOPIC, queue_id=queue_id, commit_offset=offset
            ),
        )
        queue_id = (queue_id + 1) % frames.QUEUES
        if queue_id:
            offset -= frames.BATCH_COUNT


def _pop(call: _Caller, group: str, count: int) -> None:
    for _ in range(count):
        answer = call(
            RequestCode.POP_MESSAGE,
            PopMessageRequestHeader(
                consumer_group=group, topic=TOPIC, queue_id=-1, max_msg_nums=32, invisible_time=60_000, poll_time=0
            ),
        )
        header = answer.decode_header(PopMessageResponseHeader)
        assert header.msg_offset_info is not None
        acks = []
        for part in header.msg_offset_info.split(";"):
            mark, queue_id, offsets = part.split(" ")
            numbers = list(map(int, offsets.split(",")))
            bits = sum(1 << number - numbers[0] for number in numbers)
            acks.append(
                BatchAck(
                    consumer_group=group, topic=TOPIC, retry=mark, start_offset=numbers[0], queue_id=int(queue_id),
                    revive_queue_id=header.revive_qid, pop_time=header.pop_time, invisible_time=header.invisible_time,
                    bit_set=bits.to_bytes(bits.bit_length() // 8 + 1, "little"),
                )
            )  # fmt: skip
        call(RequestCode.BATCH_ACK_MESSAGE, body=encode_body(BatchAckMessageRequestBody(broker_name="b", acks=acks)))
