"""Message trace from the client that writes it to the operator who asks for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rucola.admin import TRACE_TOPIC, AdminClient
from rucola.broker.broker import Broker
from rucola.client import (
    LocalTransactionState,
    Message,
    Producer,
    PullConsumer,
    TransactionProducer,
    trace,
)
from rucola.client.trace import MAX_COLLECTED, MessageTrace
from rucola.errors import TopicNotFound
from rucola.message import MessageExt
from rucola.protocol.trace import ConsumeReturnType, MessageType, Pub, decode
from support.cluster import Cluster, Tally, cluster
from support.consumers import consumer_of


class Scene:
    def __init__(self, running: Cluster, broker: Broker, admin: AdminClient, trace: MessageTrace) -> None:
        self.running = running
        self.broker = broker
        self.admin = admin
        self.trace = trace

    async def written(self) -> list[MessageExt]:
        """The messages of the trace topic."""
        async with PullConsumer("looking", self.running.namesrv) as consumer:
            pulls = [await consumer.pull(queue, 0) for queue in await consumer.queues(TRACE_TOPIC)]
        return [message for pull in pulls for message in pull.messages]


@asynccontextmanager
async def traced_cluster(path: Path, **settings: bool) -> AsyncIterator[Scene]:
    async with cluster(path) as running:
        store = {"message_delay_level": "1s 1s 1s"}  # the third is that of a first retry
        broker = await running.start_broker(store=store, **{"trace_topic_enable": True} | settings)
        await running.create_topic(broker, "T", 1)
        async with AdminClient(running.namesrv) as admin, MessageTrace(running.namesrv) as trace:
            yield Scene(running, broker, admin, trace)


async def test_a_trace_shows_a_send(tmp_path: Path) -> None:
    async with traced_cluster(tmp_path) as scene:
        async with Producer("p", scene.running.namesrv, trace=scene.trace) as producer:
            one = await producer.send(Message("T", b"one", tags="x", keys="k1 k2"))
            late = Message("T", b"late")
            late.delay_level = 1
            later = await producer.send(late)
            batch = await producer.send_batch([Message("T", b"b%d" % number, keys=f"b{number}") for number in range(3)])
            many = [result async for result in producer.send_many([Message("T", b"many")])]
        await scene.trace.flush()
        view = await scene.admin.traces.query(one.msg_id)
        ((host, pub),) = view.sends
        assert (host, view.transactions, view.deliveries, view.is_cut) == ("127.0.0.1", [], [], False)
        assert (pub.group, pub.topic, pub.tags, pub.keys, pub.body_length) == ("p", "T", "x", "k1 k2", 3)
        assert (pub.msg_id, pub.offset_msg_id, pub.store_host) == (one.msg_id, one.offset_msg_id, scene.broker.address)
        assert (pub.region_id, pub.success, pub.message_type) == ("DefaultRegion", True, MessageType.NORMAL)
        assert pub.cost_ms >= 0
        ((_, delayed),) = (await scene.admin.traces.query(later.msg_id)).sends
        assert (delayed.message_type, delayed.tags, delayed.keys) == (MessageType.DELAY, None, None)
        for number, result in enumerate(batch):
            ((_, of_batch),) = (await scene.admin.traces.query(result.msg_id)).sends
            assert (of_batch.keys, of_batch.offset_msg_id) == (f"b{number}", result.offset_msg_id)
        assert len((await scene.admin.traces.query(many[0].msg_id)).sends) == 1
        (message,) = await scene.written()
        assert {"k1", "k2", "b0", one.msg_id} <= set((message.keys or "").split(" "))
        assert len(decode(message.body.decode())) == 6
        assert (await scene.admin.traces.query("nobody")).sends == []


async def test_a_trace_shows_the_end_of_a_transaction(tmp_path: Path) -> None:
    def commit(message: Message | MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    async with traced_cluster(tmp_path) as scene:
        options = {"check": commit, "trace": scene.trace}
        async with TransactionProducer("p", scene.running.namesrv, **options) as producer:  # type: ignore[arg-type]
            sent = await producer.send_in_transaction(Message("T", b"half", keys="k"), commit)
        await scene.trace.flush()
        view = await scene.admin.traces.query(sent.msg_id)
        assert [pub.message_type for _, pub in view.sends] == [MessageType.TRANSACTION_HALF]
        ((_, end),) = view.transactions
        assert (end.transaction_state, end.from_transaction_check, end.keys) == ("COMMIT_MESSAGE", False, "k")


async def test_a_trace_shows_consumption(tmp_path: Path) -> None:
    async with traced_cluster(tmp_path) as scene:
        async with Producer("p", scene.running.namesrv) as producer:
            sent = await producer.send(Message("T", b"one", keys="k"))
        message = await scene.admin.messages.get(sent.offset_msg_id)
        with pytest.raises(ValueError, match="bad"), scene.trace.consuming("c", [message]):
            raise ValueError("bad")
        message.reconsume_times = 1
        with scene.trace.consuming("c", [message]):
            await scene.trace.flush()
            during = await scene.admin.traces.query(sent.msg_id)
            assert [one.end is not None for one in during.deliveries] == [True, False]
        await scene.trace.flush()
        failed, done = (await scene.admin.traces.query(sent.msg_id)).deliveries
        assert failed.begin is not None
        assert failed.end is not None
        assert (failed.end.success, failed.end.context_code) == (False, ConsumeReturnType.EXCEPTION)
        assert done.begin is not None
        assert done.end is not None
        assert (done.group, done.begin.retry_times, done.end.success) == ("c", 1, True)
        assert done.begin.timestamp <= done.end.timestamp


async def test_a_trace_shows_the_result_of_a_listener(tmp_path: Path) -> None:
    async with traced_cluster(tmp_path) as scene:
        tries: Tally[int] = Tally()

        async def listen(message: MessageExt) -> None:
            tries.add(message.reconsume_times)
            if not message.reconsume_times:
                raise ValueError("bad")

        async with Producer("p", scene.running.namesrv) as producer:
            sent = await producer.send(Message("T", b"one"))
        consumer = consumer_of(scene.running, orderly=True, suspend_current_queue_ms=10, trace=scene.trace)
        consumer.listen(listen)
        async with consumer:
            await tries.reach(2)
        await scene.trace.flush()
        failed, done = (await scene.admin.traces.query(sent.msg_id)).deliveries
        assert (failed.group, failed.end and failed.end.success, done.end and done.end.success) == ("c", False, True)


async def test_a_broker_without_tracing_gets_no_traces(tmp_path: Path) -> None:
    async with traced_cluster(tmp_path, trace_on=False) as scene:
        async with Producer("p", scene.running.namesrv, trace=scene.trace) as producer:
            sent = await producer.send(Message("T", b"one"))
        message = await scene.admin.messages.get(sent.offset_msg_id)
        message.properties["TRACE_ON"] = "false"  # as a broker marks it that has hooks of its own
        with scene.trace.consuming("c", [message]):
            pass
        await scene.trace.flush()
        assert await scene.written() == []


async def test_a_burst_is_traced_completely(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    count, consumed = 1500, Tally[int]()
    async with traced_cluster(tmp_path) as scene:
        async with Producer("p", scene.running.namesrv, trace=scene.trace) as producer:
            await producer.send_batch([Message("T", b"x", keys=f"key-{number}") for number in range(count)])
        consumer = consumer_of(scene.running, trace=scene.trace, pull_batch_size=count)

        def listen(messages: list[MessageExt]) -> None:
            for _ in messages:
                loop.call_soon_threadsafe(consumed.add, 1)

        loop = asyncio.get_running_loop()
        consumer.listen_to_batches(listen, 500)
        async with consumer:
            await consumed.reach(count)
        await scene.trace.flush()
        entries = [entry for message in await scene.written() for entry in decode(message.body.decode())]
        assert Counter(type(entry).__name__ for entry in entries) == {
            "Pub": count, "SubBefore": count, "SubAfter": count
        }  # fmt: skip
        assert "dropped" not in caplog.text


async def test_a_trace_that_is_not_open_says_so_and_sends_when_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with traced_cluster(tmp_path) as scene:
        unopened = MessageTrace(scene.running.namesrv)
        async with Producer("p", scene.running.namesrv, trace=unopened) as producer:
            for _ in range(2):
                await producer.send(Message("T", b"x"))
        assert [record.levelname for record in caplog.records if record.name == "rucola.client.trace"] == ["WARNING"]
        assert await scene.written() == []
        async with unopened:
            pass
        assert len([entry for message in await scene.written() for entry in decode(message.body.decode())]) == 2


async def test_traces_beyond_the_buffer_are_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "MAX_UNSENT", 2 * MAX_COLLECTED)
    async with traced_cluster(tmp_path) as scene:
        async with Producer("p", scene.running.namesrv, trace=scene.trace) as producer:
            messages = [Message("T", b"x", keys=f"key-{number}") for number in range(2 * MAX_COLLECTED + 2)]
            assert len(await producer.send_batch(messages)) == 2 * MAX_COLLECTED + 2
        await scene.trace.flush()
        written = await scene.written()
        assert len(written) > 1, "one message does not hold so many"
        entries = [entry for message in written for entry in decode(message.body.decode())]
        assert [entry.keys for entry in entries if isinstance(entry, Pub)].count("key-0") == 1
        assert len(entries) == 2 * MAX_COLLECTED
        assert "2 entries of the message trace were dropped" in caplog.text


async def test_traces_of_messages_with_many_short_keys_are_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker limits the keys of a message, those of the trace topic included."""
    async with traced_cluster(tmp_path) as scene:
        async with Producer("p", scene.running.namesrv, trace=scene.trace) as producer:
            keys = [" ".join(f"{number}-{key}" for key in range(40)) for number in range(100)]
            await producer.send_batch([Message("T", b"x", keys=words) for words in keys])
        await scene.trace.flush()
        entries = [entry for message in await scene.written() for entry in decode(message.body.decode())]
        assert sorted(entry.keys for entry in entries if isinstance(entry, Pub)) == sorted(keys)
        assert "failed" not in caplog.text


async def test_a_send_succeeds_and_logs_if_the_trace_topic_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Sending goes on; the trace is lost, and the log says so."""

    async with traced_cluster(tmp_path, trace_topic_enable=False, auto_create_topic_enable=False) as scene:
        async with Producer("p", scene.running.namesrv, trace=scene.trace) as producer:
            await producer.send(Message("T", b"one"))
        await scene.trace.flush()
        with pytest.raises(TopicNotFound):
            await scene.admin.traces.query("any")
        assert "message trace, whose entries are lost, failed" in caplog.text
