"""Listeners that fail with more than an Exception: each is a failure like any other, and every worker survives it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rucola.client import (
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    ReconsumeLater,
    SuspendCurrentQueueAMoment,
    TransactionProducer,
)
from rucola.client import sync as blocking
from rucola.client.consumer import assignment, dispatcher, push_consumer
from rucola.client.producer.options import CompletedSend
from rucola.errors import ConfigError
from rucola.protocol.connections import CR_THROW_EXCEPTION
from support.broker_thread import servers
from support.cluster import Tally, cluster
from support.consumers import FIRST, ScriptedBroker, cluster_with_topic, committed, consumer_of, record_of
from support.waiting import until


class Panic(BaseException):
    """Not an Exception, as pytest's outcomes and trio's cancellation are."""


ERRORS = [
    asyncio.CancelledError("a task of its own"),
    concurrent.futures.CancelledError(),
    StopIteration(7),
    StopAsyncIteration(),
    GeneratorExit(),
    SystemExit(3),
    Panic("boo"),
]
each_error = pytest.mark.parametrize(
    "error", ERRORS, ids=lambda error: f"{type(error).__module__}.{type(error).__name__}"
)
some_errors = pytest.mark.parametrize("error", [ERRORS[0], ERRORS[2], ERRORS[5]], ids=repr)
"""A cancellation, what a coroutine cannot raise, and what is no Exception: where only the handling differs."""
each_kind = pytest.mark.parametrize("kind", ["coroutine", "thread"])


def raising(
    error: BaseException, kind: str, fails: Callable[[Any], bool] = lambda argument: True
) -> Callable[[Any], Any]:
    """A listener that raises the error whenever it is to fail."""

    def listen_in_a_thread(argument: Any) -> None:
        if fails(argument):
            raise error

    async def listen(argument: Any) -> None:
        await asyncio.sleep(0)
        listen_in_a_thread(argument)

    return listen if kind == "coroutine" else listen_in_a_thread


@each_error
@each_kind
async def test_concurrently_each_failure_is_counted_logged_and_retried(
    tmp_path: Path, error: BaseException, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Six failures are more than the two workers could take if each ended with its failure."""

    async with cluster(tmp_path) as running:
        broker = ScriptedBroker([record_of(i, b"%d" % i) for i in range(6)])
        await broker.start(running)
        consumer = consumer_of(running, concurrency=2)
        consumer.listen(raising(error, kind))
        async with consumer:
            returned = await broker.given_back.reach(6)
            await until(lambda: consumer.stats()["T"].held == 0)
            stats = consumer.stats()["T"]
        assert sorted(header.offset for header in returned) == list(range(1000, 1006))
        assert (stats.failed, stats.consumed, stats.in_hand) == (6, 0, 0)
        assert broker.committed == 6
    assert caplog.text.count("the listener failed on message") == 6
    failures = [record for record in caplog.records if "the listener failed on message" in record.getMessage()]
    assert all(type(error).__name__ in record.getMessage() for record in failures)
    assert [record.exc_info is not None for record in failures] == [True] + 5 * [False]


SUCCESS, LATER = ConsumeConcurrentlyStatus.CONSUME_SUCCESS, ConsumeConcurrentlyStatus.RECONSUME_LATER
IN_ORDER = ConsumeOrderlyStatus


@pytest.mark.parametrize("batch", [False, True])
@each_kind
async def test_a_result_is_a_status_or_a_failure(
    tmp_path: Path, kind: str, batch: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Results that are no status may be meant as failures, so that nothing is acknowledged by them."""
    results = [None, SUCCESS, IN_ORDER.SUCCESS, LATER, "RECONSUME_LATER", False, True, 7]

    def listen_in_a_thread(argument: Any) -> Any:
        (message,) = argument if batch else [argument]
        return results[int(message.body)]

    async def listen(argument: Any) -> Any:
        return listen_in_a_thread(argument)

    listener = listen if kind == "coroutine" else listen_in_a_thread
    async with cluster(tmp_path) as running:
        broker = ScriptedBroker([record_of(i, b"%d" % i) for i in range(len(results))])
        await broker.start(running)
        consumer = consumer_of(running, concurrency=2)
        if batch:
            consumer.listen_to_batches(listener, 1)
        else:
            consumer.listen(listener)
        async with consumer:
            returned = await broker.given_back.reach(5)
            await until(lambda: consumer.stats()["T"].held == 0)
            stats = consumer.stats()["T"]
        assert sorted(header.offset for header in returned) == [1003, 1004, 1005, 1006, 1007]
        assert (stats.consumed, stats.failed) == (3, 5)
    assert len([record for record in caplog.records if record.name == dispatcher.__name__]) == 1


@pytest.mark.slow
@some_errors
@each_kind
async def test_in_order_a_failed_message_is_retried_and_its_queue_can_move(
    tmp_path: Path, error: BaseException, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "UNBALANCED_PAUSE_MS", 20)

    async with cluster_with_topic(tmp_path, range(40)) as (running, _):
        seen: Tally[tuple[int, int]] = Tally()
        failed: set[tuple[int, int]] = set()
        loop = asyncio.get_running_loop()

        def fails(messages: list[MessageExt]) -> bool:
            """Once at the third message of each queue."""
            (message,) = messages
            place = message.queue_id, message.queue_offset
            if message.queue_offset == 2 and place not in failed:
                failed.add(place)
                return True
            loop.call_soon_threadsafe(seen.add, place)
            return False

        first, second = (consumer_of(running, orderly=True, suspend_current_queue_ms=10) for _ in range(2))
        for consumer in (first, second):
            consumer.listen_to_batches(raising(error, kind, fails), 1)
        async with first:
            await seen.reach(40)
            async with second:
                await until(lambda: len(second.queues) == 2)
        assert await committed(running) == 40
    assert len(failed) == 4
    for queue_id in range(4):
        assert [offset for queue, offset in seen.items if queue == queue_id] == list(range(10))


@pytest.mark.parametrize("awaits", [True, False])
async def test_a_listener_that_cancels_the_task_it_runs_in_fails(tmp_path: Path, awaits: bool) -> None:
    async def listen(message: MessageExt) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if awaits:
            await asyncio.sleep(0)
        raise ValueError("not cancelled yet")

    async with cluster(tmp_path) as running:
        broker = ScriptedBroker([record_of(i, b"%d" % i) for i in range(4)])
        await broker.start(running)
        consumer = consumer_of(running, concurrency=1)
        consumer.listen(listen)
        async with consumer:
            await broker.given_back.reach(4)
        assert broker.committed == 4


async def test_a_closing_consumer_cancels_a_listener_without_counting_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_consumer, "CLOSE_GRACE_MS", 10)

    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def listen(message: MessageExt) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with cluster(tmp_path) as running:
        broker = ScriptedBroker([record_of(0, b"0")])
        await broker.start(running)
        consumer = consumer_of(running)
        consumer.listen(listen)
        async with consumer:
            await begun.wait()
        assert cancelled.is_set()
        stats = consumer.stats()["T"]
        assert (stats.failed, stats.consumed, stats.in_hand) == (0, 0, 0)
        assert broker.given_back.items == []
        assert broker.committed == 0


def test_the_end_of_asyncio_run_cancels_a_listener_without_counting_a_failure(tmp_path: Path) -> None:
    """It cancels every task. The program has forgotten to close its consumer; the message must not be sent back."""

    async def consume(namesrv: str, consumers: list[push_consumer.PushConsumer]) -> None:
        begun = asyncio.Event()

        async def listen(message: MessageExt) -> None:
            begun.set()
            await asyncio.Event().wait()

        consumer = push_consumer.PushConsumer("c", namesrv, consume_from=FIRST)
        consumers.append(consumer)
        consumer.subscribe("T")
        consumer.listen(listen)
        await consumer.open()
        await begun.wait()

    with servers(tmp_path) as namesrv:
        with blocking.Producer("g", namesrv) as producer:
            producer.send(Message("T", b"0"))
        consumers: list[push_consumer.PushConsumer] = []
        asyncio.run(consume(namesrv, consumers))
        assert consumers[0].stats()["T"].failed == 0
        with blocking.PullConsumer("reader", namesrv) as reader:
            assert [reader.max_offset(queue) for queue in reader.queues("%RETRY%c")] == [0]


@some_errors
@each_kind
async def test_an_operator_who_invokes_the_listener_gets_the_error(
    tmp_path: Path, error: BaseException, kind: str
) -> None:
    async with cluster(tmp_path) as running:
        broker = ScriptedBroker([record_of(0, b"0")])
        await broker.start(running)
        seen: Tally[MessageExt] = Tally()
        loop = asyncio.get_running_loop()

        def fails(message: MessageExt) -> bool:
            loop.call_soon_threadsafe(seen.add, message)
            return len(seen.items) > 0

        consumer = consumer_of(running)
        consumer.listen(raising(error, kind, fails))
        async with consumer:
            (message,) = await seen.reach(1)
            result = await consumer.operations.consume_directly(message)
        assert result.consume_result == CR_THROW_EXCEPTION
        assert type(error).__name__ in (result.remark or "")


@pytest.mark.slow
@some_errors
@each_kind
async def test_a_check_that_fails_leaves_its_transaction_open(
    tmp_path: Path, error: BaseException, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker asks again, and the next check settles it."""
    unknown, commit = LocalTransactionState.UNKNOW, LocalTransactionState.COMMIT_MESSAGE

    asked: list[MessageExt] = []

    def look_up_in_a_thread(message: MessageExt) -> LocalTransactionState:
        asked.append(message)
        if len(asked) == 1:
            raise error
        return commit

    async def look_up(message: MessageExt) -> LocalTransactionState:
        return look_up_in_a_thread(message)

    eager = {"transaction_time_out": 0, "transaction_check_interval": 1, "transaction_check_max": 1_000_000}
    async with cluster(tmp_path) as running:
        await running.create_topic(await running.start_broker(**eager), "T", 1)
        seen: Tally[MessageExt] = Tally()

        async def listen(message: MessageExt) -> None:
            seen.add(message)

        consumer = consumer_of(running)
        consumer.listen(listen)
        check = look_up if kind == "coroutine" else look_up_in_a_thread
        async with consumer, TransactionProducer("p", running.namesrv, check=check) as producer:
            await producer.send_in_transaction(Message("T", b"body"), lambda message: unknown)
            await seen.reach(1)
    assert "the check of transaction" in caplog.text
    assert type(error).__name__ in caplog.text


@some_errors
async def test_a_local_transaction_that_fails_in_a_thread_is_left_open_and_raised(
    tmp_path: Path, error: BaseException
) -> None:
    async with cluster_with_topic(tmp_path) as (running, _):

        def execute(message: Message) -> LocalTransactionState:
            raise error

        async with TransactionProducer("p", running.namesrv, check=lambda message: None) as producer:
            raised = RuntimeError if isinstance(error, StopIteration) else type(error)
            with pytest.raises(raised):
                await producer.send_in_transaction(Message("T", b"body"), execute)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), StopIteration()])
def test_the_blocking_client_raises_the_applications_error_and_continues(tmp_path: Path, error: BaseException) -> None:
    """On its event loop, such an error ends the loop; the caller would wait for ever."""
    raised = RuntimeError if isinstance(error, StopIteration) else type(error)

    def select(queues: Sequence[MessageQueue]) -> MessageQueue:
        raise error

    with servers(tmp_path) as namesrv, blocking.Producer("g", namesrv) as producer:
        with pytest.raises(raised):
            producer.send(Message("T", b"0"), select)
        assert producer.send(Message("T", b"1")).is_ok


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_the_blocking_client_survives_a_listener_on_its_loop(tmp_path: Path, error: BaseException) -> None:
    """Ctrl-C reaches the main thread alone, so there it is a failure as well."""
    with servers(tmp_path) as namesrv, blocking.Producer("g", namesrv) as producer:
        consumer = blocking.PushConsumer("c", namesrv, consume_from=FIRST, concurrency=1)
        consumer.subscribe("T")
        consumer.listen(raising(error, "coroutine", lambda message: message.body == b"bad"))
        with consumer:
            producer.send(Message("T", b"bad"))
            producer.send(Message("T", b"good"))
            while (stats := consumer.stats().get("T")) is None or not stats.consumed:
                consumer.queues  # noqa: B018 (a turn of the consumer's loop)
            assert consumer.stats()["T"].failed == 1


def test_ctrl_c_in_a_coroutine_listener_ends_the_program(tmp_path: Path) -> None:
    async def consume(namesrv: str) -> None:
        consumer = push_consumer.PushConsumer("c", namesrv, consume_from=FIRST)
        consumer.subscribe("T")
        consumer.listen(raising(KeyboardInterrupt(), "coroutine"))
        async with consumer:
            await asyncio.Event().wait()

    with servers(tmp_path) as namesrv:
        with blocking.Producer("g", namesrv) as producer:
            producer.send(Message("T", b"0"))
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(consume(namesrv))


async def test_a_message_without_a_thread_to_run_on_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In order, for nothing may be delivered twice at a time. The system has no thread for the first five calls."""
    monkeypatch.setattr(dispatcher, "NOT_CALLED_PAUSE_MS", 10)
    refused: list[str] = []
    start = threading.Thread.start

    def start_or_refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("listener of") and len(refused) < 5:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_refuse)

    async with cluster_with_topic(tmp_path, range(20)) as (running, _):
        seen: Tally[int] = Tally()
        loop = asyncio.get_running_loop()
        consumer = consumer_of(running, orderly=True)

        def listen(message: MessageExt) -> None:
            loop.call_soon_threadsafe(seen.add, int(message.body))

        consumer.listen(listen)
        async with consumer:
            await seen.reach(20)
            await until(lambda: consumer.stats()["T"].consumed == 20)
            assert consumer.stats()["T"].failed == 0
        assert sorted(seen.items) == list(range(20))
        assert await committed(running) == 20
    assert len(refused) == 5
    assert caplog.text.count("messages wait, uncommitted: no thread accepts a call of the listener: can't start") == 1


@pytest.mark.parametrize("result", [SystemExit(3), None])
async def test_a_failed_strategy_keeps_the_assignment(
    tmp_path: Path, result: BaseException | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The second time: by an error, or by a result that is none."""

    caplog.set_level(logging.CRITICAL, "rucola.client")
    async with cluster_with_topic(tmp_path, queues=2) as (running, _):
        calls: list[str] = []

        def share_out(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
            calls.append(queues[0].topic)
            if calls.count("T") == 2 and queues[0].topic == "T":
                if result is not None:
                    raise result
                return None  # type: ignore[return-value]
            return list(queues)

        async with consumer_of(running, strategy=share_out) as consumer:
            consumer.members_changed()
            await consumer.rebalanced()
            assert len(consumer.queues) == 2
            consumer.members_changed()
            await until(lambda: calls.count("T") > 2)


class BrokenTrace:
    """A trace that fails when a call begins, or when it ends."""

    def __init__(self, at: str) -> None:
        self.at = at

    @contextmanager
    def consuming(self, group: str, messages: Sequence[MessageExt]) -> Iterator[None]:
        if self.at == "begin":
            raise OSError("no disk for the trace")
        try:
            yield
        except ValueError:
            if self.at == "swallow":
                return
            raise
        if self.at == "end":
            raise OSError("no disk for the trace")


@pytest.mark.parametrize("at", ["begin", "end", "swallow"])
async def test_a_failed_trace_does_not_affect_the_message(tmp_path: Path, at: str) -> None:
    async with cluster(tmp_path) as running:
        broker = ScriptedBroker([record_of(i, b"%d" % i) for i in range(2)])
        await broker.start(running)
        consumer = consumer_of(running, trace=BrokenTrace(at))
        consumer.listen(raising(ValueError("no"), "coroutine", lambda message: message.body == b"1"))
        async with consumer:
            (header,) = await broker.given_back.reach(1)
            await until(lambda: consumer.stats()["T"].held == 0)
        assert header.offset == 1001
        assert broker.committed == 2
        assert len(broker.given_back.items) == 1


class FailingTrace:
    """A trace that fails at everything that a producer tells it."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def send_completed(self, send: CompletedSend) -> None:
        self.told.append("sent")
        raise OSError("no disk for the trace")

    def transaction_ended(
        self, group: str, message: Message | MessageExt, address: str, state: str, *, from_check: bool
    ) -> None:
        self.told.append("ended")
        raise OSError("no disk for the trace")


async def test_a_failed_trace_does_not_affect_a_producer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The message is stored: an error would make the application send it again."""

    trace = FailingTrace()
    async with (
        cluster_with_topic(tmp_path) as (running, _),
        TransactionProducer("p", running.namesrv, check=lambda message: None, trace=trace) as producer,
    ):
        assert (await producer.send(Message("T", b"0"))).is_ok
        assert [result.is_ok async for result in producer.send_many([Message("T", b"1")])] == [True]
        state = LocalTransactionState.COMMIT_MESSAGE
        assert (await producer.send_in_transaction(Message("T", b"2"), lambda message: state)).state is state
    assert trace.told == ["sent", "sent", "sent", "ended"]
    assert caplog.text.count("the trace failed in FailingTrace.") == 4


async def test_a_batch_that_its_listener_emptied_is_complete(tmp_path: Path) -> None:
    def listen(messages: list[MessageExt]) -> None:
        while messages:
            messages.pop()

    async with cluster_with_topic(tmp_path, range(50)) as (running, _):
        consumer = consumer_of(running)
        consumer.listen_to_batches(listen, 8)
        async with consumer:
            await until(lambda: consumer.stats().get("T") is not None and consumer.stats()["T"].consumed == 50)
        assert await committed(running) == 50


@pytest.mark.parametrize(
    "make",
    [
        lambda: ReconsumeLater("soon"),  # type: ignore[arg-type]
        lambda: ReconsumeLater(ack_index=None),  # type: ignore[arg-type]
        lambda: SuspendCurrentQueueAMoment("1s"),  # type: ignore[arg-type]
    ],
)
def test_the_result_of_a_listener_is_validated(make: Callable[[], Exception]) -> None:
    with pytest.raises(ConfigError):
        make()


async def test_a_request_is_answered_after_its_responder_has_failed_before(tmp_path: Path) -> None:
    """The responder is a listener: after a failure that would have ended its only worker it still replies."""

    async with cluster_with_topic(tmp_path, queues=1) as (running, _), Producer("r", running.namesrv) as replier:
        failing = iter([asyncio.CancelledError(), GeneratorExit()])

        async def respond(request: MessageExt) -> None:
            if (error := next(failing, None)) is not None:
                raise error
            await replier.reply(request, b"yes")

        consumer = consumer_of(running, orderly=True, concurrency=1, suspend_current_queue_ms=10)
        consumer.listen(respond)
        async with consumer, Producer("a", running.namesrv) as asker:
            reply = await asker.request(Message("T", b"well?"), timeout_ms=20_000)
            assert reply.body == b"yes"
