"""`retry_another_broker_when_not_store_ok`: what its broker does not vouch for is stored on another one as well."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rucola.client import LocalTransactionState, Producer, SendResult, SendStatus, TransactionProducer
from rucola.message import Message
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.send import SendMessageResponseHeader
from rucola.remoting.connection import Connection, Reply
from support.cluster import cluster

LACKING = [ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE]
OK, LATE, REFUSED = ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.MESSAGE_ILLEGAL

Way = Callable[[Producer, Message], Awaitable[SendResult]]


async def alone(producer: Producer, message: Message) -> SendResult:
    return await producer.send(message)


async def in_a_batch(producer: Producer, message: Message) -> SendResult:
    return (await producer.send_batch([message]))[0]


async def in_a_stream(producer: Producer, message: Message) -> SendResult:
    (result,) = [result async for result in producer.send_many([message])]
    return result


async def to_a_chosen_queue(producer: Producer, message: Message) -> SendResult:
    return await producer.send(message, (await producer.queues("T"))[0])


class Brokers:
    """Brokers with one queue of topic T each, and how each answers a send; `asked` says in which order."""

    def __init__(self, codes: dict[str, ResponseCode]) -> None:
        self.codes = codes
        self.asked: list[str] = []

    @asynccontextmanager
    async def serving(self, path: Path, *, retry_another: bool = True) -> AsyncIterator[Producer]:
        async with cluster(path) as running:
            for name in self.codes:
                answer = self._answer(name)
                await running.scripted_broker(
                    name, "T", {RequestCode.SEND_MESSAGE_V2: answer, RequestCode.SEND_BATCH_MESSAGE: answer}
                )
            async with Producer("g", running.namesrv, retry_another_broker_when_not_store_ok=retry_another) as producer:
                yield producer

    def _answer(self, name: str) -> Callable[[Connection, RemotingCommand], Reply]:
        def answer(connection: Connection, command: RemotingCommand) -> Reply:
            self.asked.append(name)
            header = SendMessageResponseHeader(msg_id="7F00000100002A9F" + 16 * "0", queue_id=0, queue_offset=0)
            return command.response(self.codes[name], header)

        return answer


@asynccontextmanager
async def sending(brokers: Brokers, path: Path, *, retry: bool = True) -> AsyncIterator[Producer]:
    async with brokers.serving(path, retry_another=retry) as producer:
        yield producer


@pytest.mark.parametrize("code", LACKING)
@pytest.mark.parametrize("way", [alone, in_a_batch, in_a_stream])
async def test_retry_another_stores_the_message_on_a_second_broker(
    tmp_path: Path, code: ResponseCode, way: Way
) -> None:
    brokers = Brokers({"broker-a": code, "broker-b": OK})

    async with sending(brokers, tmp_path) as producer:
        results = [await way(producer, Message("T", b"x")) for _ in range(4)]
        assert {(result.status, result.queue.broker_name) for result in results} == {(SendStatus.SEND_OK, "broker-b")}
        assert 1 <= brokers.asked.count("broker-a") <= 4
        assert brokers.asked.count("broker-b") == 4
        stats = producer.stats()["T"]
        assert (stats.sent, stats.not_store_ok, stats.failed, stats.in_flight) == (4, 0, 0, 0)


@pytest.mark.parametrize("way", [alone, in_a_batch, in_a_stream])
async def test_a_message_is_stored_on_one_broker_by_default(tmp_path: Path, way: Way) -> None:
    brokers = Brokers({"broker-a": LATE, "broker-b": LATE})

    async with sending(brokers, tmp_path, retry=False) as producer:
        assert (await way(producer, Message("T", b"x"))).status is SendStatus.FLUSH_DISK_TIMEOUT
        assert len(brokers.asked) == 1
        assert producer.stats()["T"].not_store_ok == 1


async def test_a_chosen_queue_is_never_changed(tmp_path: Path) -> None:
    brokers = Brokers({"broker-a": LATE, "broker-b": OK})

    async with sending(brokers, tmp_path) as producer:
        result = await to_a_chosen_queue(producer, Message("T", b"x"))
        assert (result.status, result.queue.broker_name) == (SendStatus.FLUSH_DISK_TIMEOUT, "broker-a")
        assert brokers.asked == ["broker-a"]


@pytest.mark.parametrize("names", ["a", "ab", "abc", "abcd"])
async def test_each_broker_is_tried_once_within_the_retry_limit(tmp_path: Path, names: str) -> None:
    brokers = Brokers({f"broker-{name}": LATE for name in names})

    async with sending(brokers, tmp_path) as producer:
        result = await producer.send(Message("T", b"x"))
        assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
        assert len(brokers.asked) == len(set(brokers.asked)) == min(len(names), 1 + producer.options.retry_times)
        assert result.queue.broker_name == brokers.asked[-1]


async def test_an_error_of_another_broker_keeps_the_first_result(tmp_path: Path) -> None:
    """Whichever broker is asked first: the one that has it says so in the end."""
    brokers = Brokers({"broker-a": LATE, "broker-b": REFUSED})

    async with sending(brokers, tmp_path) as producer:
        while brokers.asked[-2:] != ["broker-a", "broker-b"]:
            try:
                result = await producer.send(Message("T", b"x"))
            except Exception:
                assert brokers.asked[-1] == "broker-b", "which was asked first"
            else:
                assert (result.status, result.queue.broker_name) == (SendStatus.FLUSH_DISK_TIMEOUT, "broker-a")


async def test_a_half_message_is_rolled_back_instead(tmp_path: Path) -> None:
    """A copy on another broker would be a transaction of its own, and the first one still be asked about."""
    brokers = Brokers({"broker-a": LATE, "broker-b": LATE})

    async with brokers.serving(tmp_path) as producer:
        transactions = TransactionProducer(
            "t",
            instance=producer.instance,
            check=lambda message: LocalTransactionState.UNKNOW,
            retry_another_broker_when_not_store_ok=True,
        )
        async with transactions:
            sent = await transactions.send_in_transaction(Message("T", b"x"), lambda message: 1 / 0)  # type: ignore[arg-type,return-value]
            assert (sent.status, sent.state) == (
                SendStatus.FLUSH_DISK_TIMEOUT, LocalTransactionState.ROLLBACK_MESSAGE,
            )  # fmt: skip
    assert len(brokers.asked) == 1
