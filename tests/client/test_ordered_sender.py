"""Messages of a queue keep their order while they share requests, and one that is refused stops no other."""

from __future__ import annotations

from pathlib import Path

from rucola.client import Message, MessageQueue, Producer
from rucola.client.producer.ordered_sender import OrderedSender, pack, with_retries
from rucola.errors import BrokerError, InvalidMessage, MQError, RemotingConnectError, TopicNotFound
from rucola.message import properties
from rucola.protocol.codes import ResponseCode
from support.cluster import cluster


def delayed() -> Message:
    message = Message("T", b"delayed")
    message.delay_level = 3
    return message


def test_messages_share_requests_if_the_brokers_support_it() -> None:
    def sizes(*messages: Message) -> list[int]:
        requests = list(pack(enumerate(messages), 5000))
        assert [number for request in requests for number, _ in request] == list(range(len(messages)))
        return [len(request) for request in requests]

    small, large = Message("T", b"x"), Message("T", bytes(5000))
    assert sizes() == []
    assert sizes(*[small] * 300) == [128, 128, 44]
    assert sizes(*[Message("T", bytes(4999))] * 300)[0] < 300
    assert sizes(small, large, small, small) == [1, 1, 2]
    for name in (properties.TIMER_DELIVER_MS, properties.TIMER_DELAY_MS, properties.TIMER_DELAY_SEC, properties.WAIT):
        assert sizes(small, Message("T", b"x", properties={name: "1"}), small) == [1, 1, 1]
    assert sizes(delayed(), delayed()) == [1, 1]
    assert sizes(*[Message("%RETRY%g", b"x")] * 2) == [1, 1]


async def test_a_refused_message_stops_no_other(tmp_path: Path) -> None:
    """The others of its request are sent one by one, in order; those that must not be sent any more are left out."""
    async with cluster(tmp_path) as running, Producer("g", running.namesrv) as producer:
        await running.create_topic(await running.start_broker(max_keys_per_message=2), "T", queues=1)
        messages = [Message("T", f"{n}".encode()) for n in range(8)]
        messages[2].keys = "a b c"  # refused by the broker
        messages[5].body = b""  # refused by the client
        left_out: set[int] = set()
        outcomes: list[tuple[list[int], list[int] | type]] = []
        sending = OrderedSender(producer).send(
            range(8), messages.__getitem__, MessageQueue("T", "broker-a", 0), lambda number: number not in left_out
        )
        async for sent, found in sending:
            if isinstance(found, MQError):
                outcomes.append((list(sent), type(found)))
                left_out.add(sent[0] + 1)
            else:
                outcomes.append((list(sent), [result.queue_offset for result in found]))
        assert outcomes == [
            ([0], [0]), ([1], [1]), ([2], BrokerError), ([4], [2]), ([5], InvalidMessage), ([7], [3]),
        ]  # fmt: skip


async def test_a_request_is_retried_only_after_retryable_errors() -> None:
    lost, busy = RemotingConnectError("lost"), BrokerError(ResponseCode.SYSTEM_BUSY, "busy", "h:1")
    refused = BrokerError(ResponseCode.MESSAGE_ILLEGAL, "too large", "h:1")
    missing = TopicNotFound("no route")

    async def made(
        outcomes: list[MQError | None], timeout_ms: float = 30_000, *, is_known_topic: bool = True
    ) -> tuple[int, MQError | None]:
        remaining = list(outcomes)

        async def request() -> None:
            outcome = remaining.pop(0)
            if outcome is not None:
                raise outcome

        error: MQError | None = None
        try:
            await with_retries(request, timeout_ms, is_known_topic=is_known_topic)
        except MQError as raised:
            error = raised
        return len(outcomes) - len(remaining), error

    assert await made([None]) == (1, None)
    assert await made([lost, busy, missing, None]) == (4, None)
    assert await made([lost, refused, None]) == (2, refused)
    assert await made([missing, None], is_known_topic=False) == (1, missing)
    assert await made([lost, None], timeout_ms=0) == (1, lost)
    assert (await made([lost] * 99, timeout_ms=1))[1] is lost
