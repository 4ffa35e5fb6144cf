"""POP: CPU time of a broker per message received and acknowledged, beside a pull and a commit of its offset."""

from __future__ import annotations

import socket
from pathlib import Path
from tempfile import TemporaryDirectory

import frames
from figures import Aim, Figure, median
from floors import Options
from load import READ_SIZE
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import Header, RemotingCommand
from rucola.protocol.frame import FrameDecoder
from rucola.protocol.offset import UpdateConsumerOffsetRequestHeader
from rucola.protocol.pop import BatchAck, BatchAckMessageRequestBody, PopMessageRequestHeader, PopMessageResponseHeader
from rucola.protocol.pull import PullMessageRequestHeader, PullMessageResponseHeader
from servers import standalone
from stored import check_stored, fill

TOPIC = "BenchPop"
STORED = 32 * 2048
BATCHES = 1_000
AIMS = (Aim("ratio", 1.3),)


def measure(options: Options) -> list[Figure]:
    """Read the same messages in both ways by turns, by a new group each time. The first round is a warm-up."""
    pops: list[float] = []
    pulls: list[float] = []
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
    del pops[0], pulls[0]
    return [
        Figure(
            "pop_and_ack_32", median(float, pops), "µs CPU/message", median(float, pulls),
            "pull of 32 and commit of the offset", ratios=[pop / pull for pop, pull in zip(pops, pulls, strict=True)],
            aims=AIMS, more={"least_µs": min(pops), "least_µs_of_pull": min(pulls)},
        )
    ]  # fmt: skip


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
