"""A push consumer that receives by POP."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from rucola.client import (
    ConfigError,
    ConsumeFromWhere,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
    PullConsumer,
    PullLimits,
    PushConsumer,
    ReconsumeLater,
    SimpleConsumer,
    sync,
)
from rucola.client.clock import precise_monotonic_ms
from rucola.client.consumer import pop_fetcher
from rucola.domain.pop import PopStatus
from rucola.message.batch import encode_batch
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.pop import PollingInfoRequestHeader, PopMessageRequestHeader, PopStatusRequestHeader
from rucola.remoting.connection import Connection
from support.broker_peer import broker_peer
from support.cluster import Cluster, Tally, cluster
from support.consumers import cluster_with_topic, committed, consumer_of, send, take
from support.errors import raises
from support.waiting import until


def member(running: Cluster, group: str = "c", expression: str = "*", **options: Any) -> PushConsumer:
    return consumer_of(running, group, expression, pop=True, **options)


async def left(running: Cluster, count: int = 0) -> list[MessageExt]:
    """What another member gets, at least so many messages."""
    async with SimpleConsumer("c", running.namesrv) as consumer, asyncio.timeout(20):
        found = await consumer.receive("T", wait_ms=0)
        while len(found) < count:
            found += await consumer.receive("T")
        return found


async def all_committed(running: Cluster, group: str = "c") -> bool:
    async with PullConsumer(group, running.namesrv) as reader:
        queues = await reader.queues("T")
        return all([await reader.committed(queue) == await reader.max_offset(queue) for queue in queues])


async def test_more_members_than_queues_share_the_messages_of_all_brokers(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, AsyncExitStack() as members:
        for name in ("broker-a", "broker-b"):
            await running.create_topic(await running.start_broker(name), "T", 1)
        await send(running, range(100))
        seen: dict[int, set[int]] = defaultdict(set)
        total = Tally[int]()
        enough = asyncio.Event()

        def listener(number: int) -> Any:
            async def listen(message: MessageExt) -> None:
                seen[number].add(int(message.body))
                total.add(int(message.body))
                await enough.wait()

            return listen

        for number in range(5):
            consumer = member(running, limits=PullLimits(count=2))
            consumer.listen(listener(number))
            await members.enter_async_context(consumer)
            assert consumer.queues == {MessageQueue("T", name, -1) for name in ("broker-a", "broker-b")}
        await total.reach(20)
        assert [len(of_member) for _, of_member in sorted(seen.items())] == [4] * 5, "each as much as it may hold"
        enough.set()
        await total.reach(100)
        assert Counter(total.items) == dict.fromkeys(range(100), 1)
        await until(lambda: all_committed(running))


async def test_every_message_of_many_is_acknowledged(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path, range(200)) as (running, _):
        consumer = member(running)
        assert sorted(await take_all(consumer, 200)) == list(range(200))
        await until(lambda: all_committed(running))
        assert await left(running) == []


async def test_while_the_broker_has_more_it_gets_several_receives_at_a_time(tmp_path: Path) -> None:
    async with cluster(tmp_path / "c") as running, broker_peer(tmp_path / "b") as peer:
        await peer.alter_topic(queues=4)
        for number in range(10):
            batch = [Message("T", b"%d" % (32 * number + each)) for each in range(32)]
            assert (await peer.send_batch(encode_batch(batch), queue_id=number % 4)).code == ResponseCode.SUCCESS
        receives: list[PopMessageRequestHeader] = []
        most, in_flight = 0, 0

        async def forward(_: Connection, command: RemotingCommand) -> RemotingCommand:
            nonlocal most, in_flight
            if is_receive := command.code == RequestCode.POP_MESSAGE:
                receives.append(command.decode_header(PopMessageRequestHeader))
                if len(receives) == 3:
                    return command.response(ResponseCode.FLOW_CONTROL, remark="busy")
            in_flight += is_receive
            most = max(most, in_flight)
            request = RemotingCommand.request(command.code, body=command.body)
            request.ext = command.ext_fields
            try:
                answer = await peer.client.invoke(peer.broker.address, request, 30_000)
            finally:
                in_flight -= is_receive
            answer.opaque, answer.ext = command.opaque, answer.ext_fields
            return answer

        codes = (RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE)
        await running.scripted_broker("broker-a", "T", dict.fromkeys(codes, forward), queues=4)
        consumer = member(running)
        seen = Tally[int]()

        async def listen(message: MessageExt) -> None:
            seen.add(int(message.body))

        consumer.listen(listen)
        async with consumer:
            await seen.reach(320)
            await until(lambda: in_flight == 1 and receives[-1].poll_time > 0)
        assert sorted(seen.items) == list(range(320))
        assert most > 1
        assert receives[0].poll_time > 0, "nothing is known of the broker"
        refused = receives[2].attempt_id
        assert [one.attempt_id for one in receives].count(refused) == 2, "it may have taken messages"


async def take_all(consumer: PushConsumer, count: int) -> list[int]:
    seen = Tally[int]()

    async def listen(message: MessageExt) -> None:
        seen.add(int(message.body))

    consumer.listen(listen)
    async with consumer:
        await seen.reach(count)
    return seen.items


async def test_a_listener_may_change_its_messages(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path, range(50)) as (running, _):
        received: Tally[bytes] = Tally()

        async def listen(message: MessageExt) -> None:
            received.add(message.body)
            message.body = None if len(received.items) % 2 else b""  # type: ignore[assignment]

        consumer = member(running, concurrency=1)
        consumer.listen(listen)
        async with consumer:
            await received.reach(50)
            await until(lambda: all_committed(running))
            assert (consumer.stats()["T"].held, consumer.stats()["T"].held_size) == (0, 0)
        assert set(received.items) == {b"%d" % number for number in range(50)}


async def test_a_failed_message_comes_again_and_in_the_end_is_a_dead_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_fetcher, "_DELAYS_MS", [1] * 18)
    async with cluster_with_topic(tmp_path, range(3)) as (running, broker):
        await running.peer(broker).alter_group("c", retry_max_times=2)
        seen = Tally[tuple[int, int, str]]()

        async def listen(message: MessageExt) -> None:
            seen.add((int(message.body), message.reconsume_times, message.topic))
            if message.body == b"1":
                raise ReconsumeLater
            if message.body == b"2":
                raise ReconsumeLater(-1)

        consumer = member(running)
        consumer.listen(listen)
        dead = PushConsumer("d", running.namesrv, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        dead.subscribe("%DLQ%c")
        async with consumer:
            await seen.reach(5)
            async with dead:
                assert sorted(await take(dead, 2)) == [1, 2]
        assert sorted(seen.items) == [(0, 0, "T"), *((1, times, "T") for times in range(3)), (2, 0, "T")]
        assert await committed(running) == 3


async def test_messages_are_selected_by_tags_and_by_sql92(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await running.create_topic(await running.start_broker(enable_property_filter=True), "T")
        async with Producer("p", running.namesrv) as producer:
            for number in range(12):
                message = Message("T", b"%d" % number, tags="ABC"[number % 3], properties={"n": str(number)})
                await producer.send(message)
        by_tags = member(running, "tags", "A || C")
        by_sql = member(running, "sql")
        by_sql.subscribe("T", "n > 7 AND TAGS <> 'B'", "SQL92")
        assert sorted(await take_all(by_tags, 8)) == [0, 2, 3, 5, 6, 8, 9, 11]
        assert sorted(await take_all(by_sql, 3)) == [8, 9, 11]
        await until(lambda: all_committed(running, "tags"))


@pytest.mark.parametrize("is_batch", [False, True])
async def test_in_order_each_message_group_goes_on_after_its_failed_message(tmp_path: Path, is_batch: bool) -> None:
    async with cluster_with_topic(tmp_path, queues=1) as (running, _), AsyncExitStack() as members:
        async with Producer("p", running.namesrv) as producer:
            for number in range(30):
                message = Message("T", b"%d" % number, properties={"__SHARDINGKEY": "abc"[number % 3]})
                await producer.send(message)
        done: dict[int, list[int]] = defaultdict(list)
        running_groups = Counter[int]()
        total = Tally[int]()
        failed = set[int]()

        async def listen(messages: list[MessageExt]) -> None:
            group = int(messages[0].body) % 3
            assert {int(message.body) % 3 for message in messages} == {group}
            running_groups[group] += 1
            assert running_groups[group] == 1, "one delivery of a message group at a time"
            await asyncio.sleep(0)
            running_groups[group] -= 1
            for index, message in enumerate(messages):
                number = int(message.body)
                if number in (3, 9, 20) and number not in failed:
                    failed.add(number)
                    raise ReconsumeLater(ack_index=index - 1)
                if not is_batch:
                    assert message.reconsume_times == (number in failed), "what follows a failed message has not failed"
                done[group].append(number)
                total.add(number)

        for _ in range(3):
            consumer = member(running, orderly=True, suspend_current_queue_ms=10)
            if is_batch:
                consumer.listen_to_batches(listen, 4)
            else:
                consumer.listen(lambda message: listen([message]))
            await members.enter_async_context(consumer)
        await total.reach(30)
        assert done == {group: list(range(group, 30, 3)) for group in range(3)}
        await until(lambda: all_committed(running))


async def test_what_was_not_started_is_visible_at_once_after_a_close(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path, range(40)) as (running, _):
        consumer = member(running)
        async with consumer:
            seen = [message async for message in _some(consumer, 3)]
            consumer.ack(seen[-1])
        again = {int(message.body): message.reconsume_times for message in await left(running, 37)}
        assert again == {number: 0 for number in range(40) if number not in {int(message.body) for message in seen}}


async def _some(consumer: PushConsumer, count: int) -> Any:
    number = 0
    async for message in consumer:
        yield message
        number += 1
        if number == count:
            break


async def test_an_iteration_and_the_blocking_client_receive_by_pop(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path, range(20)) as (running, _):

        def consume() -> list[int]:
            consumer = sync.PushConsumer(
                "c", running.namesrv, pop=True, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
            )
            consumer.subscribe("T")
            bodies = list[int]()
            with consumer:
                for message in consumer:
                    bodies.append(int(message.body))
                    if len(bodies) == 10:
                        consumer.ack(message)
                        break
            return bodies

        first = await asyncio.to_thread(consume)
        async with member(running) as consumer:
            assert sorted(first + await take(consumer, 10)) == list(range(20))
        await until(lambda: all_committed(running))


async def test_a_listener_that_outlasts_the_invisible_time_is_not_called_with_what_waits(tmp_path: Path) -> None:
    """Each message is seen once by those whose invisible time has not ended."""
    async with cluster_with_topic(tmp_path, range(3), queues=1) as (running, _):
        slow = member(running, concurrency=1, consume_timeout_ms=200, limits=PullLimits(count=3))
        seen = Tally[int]()
        go_on = asyncio.Event()

        async def listen(message: MessageExt) -> None:
            seen.add(int(message.body))
            await go_on.wait()

        slow.listen(listen)
        async with slow:
            await seen.reach(1)
            until_ms = precise_monotonic_ms() + 200  # or earlier, as the member knows it
            slow.suspend()
            async with member(running) as other:
                assert sorted(await take(other, 3)) == [0, 1, 2]
            await until(lambda: precise_monotonic_ms() >= until_ms)
            go_on.set()
            await until(lambda: slow.stats()["T"].held == 0)
        assert seen.items == [0]
        assert await left(running) == []


async def test_a_restarted_broker_gets_the_acknowledgements_of_messages_received_before(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path, range(10)) as (running, broker):
        seen = Tally[int]()
        go_on = asyncio.Event()

        async def listen(message: MessageExt) -> None:
            seen.add(int(message.body))
            await go_on.wait()

        consumer = member(running)
        consumer.listen(listen)
        async with consumer:
            await seen.reach(10)
            await broker.stop()
            go_on.set()
            await until(lambda: consumer.stats()["T"].held == 0)
            broker = await running.start_broker()
            await until(lambda: all_committed(running))
            await send(running, range(10, 20))
            await seen.reach(20)
        assert sorted(seen.items) == list(range(20))
        assert await left(running) == []


async def test_the_broker_knows_which_member_holds_a_message(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path, [0], queues=1) as (running, broker), member(running) as consumer:
        async for message in consumer:
            answer = await running.peer(broker).ask(
                RequestCode.GET_POP_STATUS, PopStatusRequestHeader(consumer_group="c")
            )
            (queue,) = decode_body(PopStatus, answer.body).queues
            assert [one.client for one in queue.messages] == [consumer.instance.client_id]
            consumer.ack(message)
            break


def test_what_pop_cannot_do_is_refused() -> None:
    for field, options in {
        "pop": {"message_model": MessageModel.BROADCASTING},
        "consume_from": {"consume_from": ConsumeFromWhere.CONSUME_FROM_TIMESTAMP},
        "max_reconsume_times": {"max_reconsume_times": 3},
        "consume_timeout_ms": {"consume_timeout_ms": 0},
    }.items():
        with raises(ConfigError) as refused:
            PushConsumer("g", "127.0.0.1:1", pop=True, **options)  # type: ignore[arg-type]
        assert refused.value.subject == field


async def test_a_receive_that_is_held_keeps_nothing_of_a_topic_that_is_no_longer_subscribed(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path) as (running, broker), member(running) as consumer:

        async def is_held() -> bool:
            header = PollingInfoRequestHeader(consumer_group="c", topic="T", queue_id=-1)
            answer = await running.peer(broker).ask(RequestCode.POLLING_INFO, header)
            return answer.ext_fields["pollingNum"] == "1"

        await until(is_held)
        consumer.unsubscribe("T")
        await until(lambda: not consumer.queues)
        await send(running, range(2))
        again = await left(running, 2)
        assert sorted((int(message.body), message.reconsume_times) for message in again) == [(0, 0), (1, 0)]
