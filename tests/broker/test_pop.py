"""POP over remoting: receive, acknowledge, change of the invisible time; retries, dead letters, order, long polling."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from rucola.broker.assembly import serving
from rucola.domain.pop import PopQueueStatus, PopStatus
from rucola.domain.topic import TopicConfigSerializeWrapper
from rucola.message.batch import encode_batch
from rucola.message.message import Message
from rucola.message.record import decode_many
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.group import DeleteSubscriptionGroupRequestHeader, ResetOffsetRequestHeader
from rucola.protocol.pop import PollingInfoRequestHeader, PopStatusRequestHeader, ReleasePopRequestHeader
from rucola.protocol.topic import TopicRequestHeader
from rucola.remoting.client import RemotingClient
from rucola.store.config import FlushDiskType
from support.broker_peer import broker_peer, heartbeat
from support.own_deliveries import Clock
from support.peer import Peer
from support.pop import Received, ack, ack_all, change, changed, pop, receive, received
from support.waiting import until

MINUTE_MS = 60_000


async def send(peer: Peer, *bodies: str, **fields: Any) -> None:
    for body in bodies:
        assert (await peer.send(body.encode(), **fields)).code == ResponseCode.SUCCESS


def bodies(messages: list[Any]) -> list[str]:
    return [message.body.decode() for message in messages]


def pass_time(clock: Clock, ms: int = MINUTE_MS + 1000) -> None:
    clock.ahead_ms += ms


async def test_a_message_is_received_by_one_and_gone_after_its_ack(tmp_path: Path) -> None:
    clock = Clock()
    async with broker_peer(tmp_path, clock=clock) as peer:
        await send(peer, "a", "b", "c")
        messages = await receive(peer)
        assert bodies(messages) == ["a", "b", "c"]
        assert [message.attempt for message in messages] == [1, 1, 1]
        assert await receive(peer) == []
        assert (await ack(peer, messages[1])).code == ResponseCode.SUCCESS
        assert await peer.committed() == 0, "the lowest one is not acknowledged"
        assert (await ack(peer, messages[0])).code == ResponseCode.SUCCESS
        assert await peer.committed() == 2
        assert (await ack(peer, messages[0])).code == ResponseCode.SUCCESS, "the answer may have been lost"
        assert (await ack_all(peer, messages)).code == ResponseCode.SUCCESS
        assert await peer.committed() == 3
        pass_time(clock)
        assert await receive(peer) == []


async def test_what_is_not_acknowledged_in_time_comes_by_the_retry_topic_and_in_the_end_is_a_dead_letter(
    tmp_path: Path,
) -> None:
    clock = Clock()
    async with broker_peer(tmp_path, clock=clock) as peer:
        await peer.alter_group(retry_max_times=2)
        await send(peer, "a", properties="TAGS\x01A\x02KEYS\x01k\x02UNIQ_KEY\x01U")
        (first,) = await receive(peer)
        for attempt in (2, 3):
            pass_time(clock)
            (again,) = await receive(peer, exp="B")
            assert (again.body, again.topic, again.attempt) == (b"a", "T", attempt)
            assert again.properties["UNIQ_KEY"] == "U"
            assert again.properties["RETRY_TOPIC"] == "T"
            stale = await ack(peer, first)
            assert stale.code == ResponseCode.SUCCESS, "it is done: its copy has a handle of its own"
        pass_time(clock)
        assert await receive(peer) == []
        (dead,) = decode_many((await peer.pull(topic="%DLQ%g")).body)
        assert (dead.body, dead.reconsume_times, dead.properties["RETRY_TOPIC"]) == (b"a", 3, "T")
        assert await peer.committed() == 1
        assert await peer.committed(topic="%RETRY%g_T") == 2


@pytest.mark.parametrize("order", [False, True])
async def test_a_delivery_that_is_suspended_is_no_attempt(tmp_path: Path, order: bool) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.alter_group(retry_max_times=1)
        await send(peer, "a")
        attempts = []
        for _ in range(3):
            (held,) = await receive(peer, order=order)
            attempts.append(held.attempt)
            await change(peer, held, 0, suspend=True)
        (held,) = await receive(peer, order=order)
        await change(peer, held, 0)
        (held,) = await receive(peer, order=order)
        assert [*attempts, held.attempt] == [1, 1, 1, 2]


async def test_groups_whose_retry_topics_have_one_name_share_no_message(tmp_path: Path) -> None:
    """`%RETRY%g_T_x` is of group g and topic T_x, and of group g_T and topic x."""
    clock = Clock()
    first = {"consumer_group": "g", "topic": "T_x"}
    second = {"consumer_group": "g_T", "topic": "x"}
    async with broker_peer(tmp_path, clock=clock) as peer:
        await send(peer, "first", topic="T_x")
        await send(peer, "second", topic="x")
        await receive(peer, **first)
        await receive(peer, **second)
        pass_time(clock)
        assert bodies(await receive(peer, **first)) == ["first"]
        assert bodies(await receive(peer, **second)) == ["second"]


async def test_a_deleted_topic_or_group_leaves_nothing(tmp_path: Path) -> None:
    clock = Clock()
    async with broker_peer(tmp_path, clock=clock) as peer:
        await send(peer, "a")
        (held,) = await receive(peer)
        pass_time(clock)
        await receive(peer)
        topics = decode_body(TopicConfigSerializeWrapper, (await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).body)
        assert "%RETRY%g_T" in topics.topic_config_table
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic="T"))
        topics = decode_body(TopicConfigSerializeWrapper, (await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).body)
        assert "%RETRY%g_T" not in topics.topic_config_table
        assert (await ack(peer, held)).code == ResponseCode.NO_MESSAGE
        await peer.alter_topic()
        await send(peer, "b")
        (held,) = await receive(peer, max_msg_nums=1)
        header = DeleteSubscriptionGroupRequestHeader(group_name="g", remove_offset="true")
        assert (await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)).code == ResponseCode.SUCCESS
        assert (await ack(peer, held)).code == ResponseCode.NO_MESSAGE
        pass_time(clock)
        # The queue of the retry topic is in the store until its next cleaning.
        again = [one.attempt for one in await receive(peer) if one.request_topic == "T"]
        assert again[:1] == [1], "a new group begins at the first message"


@pytest.mark.parametrize("order", ["true", "false"])
async def test_a_reset_of_offsets_is_followed_at_once_and_frees_what_is_blocked(tmp_path: Path, order: str) -> None:
    async with broker_peer(tmp_path) as peer:
        await send(peer, "a", "b", "c")
        (held,) = await receive(peer, max_msg_nums=1, order=order)

        async def reset(offset: int) -> None:
            header = ResetOffsetRequestHeader(topic="T", group="g", timestamp=-1, is_force=True)
            header.queue_id, header.offset = 0, offset
            assert (await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)).code == ResponseCode.SUCCESS

        waiting = asyncio.ensure_future(pop(peer, order=order, max_msg_nums=1, poll_time=20_000))
        if order == "false":
            assert bodies(received(await waiting)) == ["b"]
        await reset(2)
        assert bodies(await receive(peer, order=order) if order == "false" else received(await waiting)) == ["c"]
        assert (await ack(peer, held)).code == ResponseCode.SUCCESS, "done by the reset"
        await reset(0)
        assert bodies(await receive(peer, order=order)) == ["a", "b", "c"]


async def test_an_acknowledged_retry_is_gone(tmp_path: Path) -> None:
    clock = Clock()
    async with broker_peer(tmp_path, clock=clock) as peer:
        await send(peer, "a", "b", "c")
        await receive(peer)
        pass_time(clock)
        one, *others = await receive(peer)
        assert (await ack(peer, one)).code == ResponseCode.SUCCESS
        assert (await ack_all(peer, others)).code == ResponseCode.SUCCESS
        pass_time(clock)
        assert await receive(peer) == []


async def test_a_changed_time_has_a_handle_of_its_own(tmp_path: Path) -> None:
    clock = Clock()
    async with broker_peer(tmp_path, clock=clock) as peer:
        await send(peer, "a")
        (first,) = await receive(peer)
        longer = changed(first, await change(peer, first, 10 * MINUTE_MS))
        assert (await ack(peer, first)).code == ResponseCode.NO_MESSAGE
        assert (await change(peer, first, 1)).code == ResponseCode.NO_MESSAGE
        pass_time(clock)
        assert await receive(peer) == []
        given_back = changed(longer, await change(peer, longer, 0))
        (again,) = await receive(peer)
        assert again.attempt == 2
        assert (await ack(peer, longer)).code == ResponseCode.SUCCESS
        assert (await change(peer, given_back, 5)).code == ResponseCode.NO_MESSAGE
        assert (await ack(peer, again)).code == ResponseCode.SUCCESS


async def test_an_ack_counts_beyond_the_time_until_the_message_is_revived(tmp_path: Path) -> None:
    clock = Clock()
    async with broker_peer(tmp_path, clock=clock) as peer:
        await send(peer, "a")
        (late,) = await receive(peer, order="true")
        clock.ahead_ms += 2 * MINUTE_MS
        assert (await ack(peer, late)).code == ResponseCode.SUCCESS
        assert await receive(peer, order="true") == []


async def test_members_share_all_queues(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.alter_topic(queues=3)
        for number in range(9):
            await send(peer, str(number), queue_id=number % 3)
        found = [await receive(peer, max_msg_nums=4) for _ in range(3)]
        assert [len(messages) for messages in found] == [4, 4, 1]
        messages = [message for each in found for message in each]
        assert sorted(bodies(messages)) == list(map(str, range(9)))
        assert (await ack_all(peer, messages)).code == ResponseCode.SUCCESS
        assert [await peer.committed(queue_id=queue_id) for queue_id in range(3)] == [3, 3, 3]


async def test_one_queue_alone_is_received(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.alter_topic(queues=2)
        await send(peer, "a", queue_id=0)
        await send(peer, "b", queue_id=1)
        assert bodies(await receive(peer, queue_id=1)) == ["b"]
        assert await receive(peer, queue_id=1) == []
        assert bodies(await receive(peer, queue_id=0)) == ["a"]


@pytest.mark.parametrize(("init_mode", "expected"), [(0, ["old", "new"]), (1, ["new"])])
async def test_a_new_group_begins_where_it_says(tmp_path: Path, init_mode: int, expected: list[str]) -> None:
    async with broker_peer(tmp_path) as peer:
        await send(peer, "old")
        first = await receive(peer, init_mode=init_mode)
        await send(peer, "new")
        assert bodies(first + await receive(peer, init_mode=init_mode)) == expected


async def test_filters_by_tag_and_by_property_skip_what_they_reject(tmp_path: Path) -> None:
    async with broker_peer(tmp_path, enable_property_filter=True) as peer:
        for number in range(4):
            await send(peer, str(number), properties=f"TAGS\x01{'AB'[number % 2]}\x02n\x01{number}")
        assert bodies(await receive(peer, exp="A || C")) == ["0", "2"]
        assert await peer.committed() == 0
        assert bodies(await receive(peer, consumer_group="h", exp_type="SQL92", exp="n > 2")) == ["3"]
        assert (await pop(peer, exp_type="SQL92", exp="n >")).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_a_filter_that_matches_one_of_many_is_answered_while_the_client_waits(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        for _ in range(20):
            batch = encode_batch([Message("T", b"x", properties={"TAGS": "no"}) for _ in range(1000)])
            assert (await peer.send_batch(batch)).code == ResponseCode.SUCCESS
        await send(peer, "found", properties="TAGS\x01yes")
        assert bodies(await receive(peer, exp="yes", poll_time=20_000)) == ["found"]


async def test_a_receive_waits_for_a_message(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.alter_topic(queues=2)
        waiting = [asyncio.ensure_future(pop(peer, poll_time=20_000)) for _ in range(2)]

        async def held() -> int:
            header = PollingInfoRequestHeader(consumer_group="g", topic="T", queue_id=-1)
            return int((await peer.ask(RequestCode.POLLING_INFO, header)).ext_fields["pollingNum"])

        async def both() -> bool:
            return await held() == 2

        await until(both)
        await send(peer, "a", queue_id=1)
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert bodies(received(done.pop().result())) == ["a"]
        assert await held() == 1, "nobody else was answered"
        await send(peer, "b", queue_id=0)
        assert sorted([bodies(received(await each)) for each in waiting]) == [["a"], ["b"]]


async def test_a_receive_waits_for_a_retry(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        await send(peer, "a")
        (held,) = await receive(peer)
        waiting = asyncio.ensure_future(pop(peer, poll_time=20_000))
        await change(peer, held, 0)
        (again,) = received(await waiting)
        assert (again.body, again.attempt) == (b"a", 2)


async def test_a_receive_ends_with_its_time(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.alter_topic()
        answer = await pop(peer, poll_time=1)
        assert (answer.code, answer.ext_fields["restNum"]) == (ResponseCode.POLLING_TIMEOUT, "0")


async def test_the_broker_holds_a_bounded_number_of_receives(tmp_path: Path) -> None:
    async with broker_peer(tmp_path, max_held_pulls=1) as peer:
        await peer.alter_topic()
        both = [asyncio.ensure_future(pop(peer, poll_time=20_000)) for _ in range(2)]
        done, held = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        assert [each.result().code for each in done] == [ResponseCode.POLLING_FULL]
        await send(peer, "a")
        assert bodies(received(await held.pop())) == ["a"]


# In order.


async def keyed(peer: Peer, *messages: str) -> None:
    """Messages "a1", whose sharding key is their letter."""
    for body in messages:
        await send(peer, body, properties=f"__SHARDINGKEY\x01{body[0]}")


async def test_no_later_message_of_a_held_message_group_is_received(tmp_path: Path) -> None:
    clock = Clock()
    async with broker_peer(tmp_path, clock=clock) as peer:
        await keyed(peer, "a1", "a2", "b1", "a3")
        (a1,) = await receive(peer, order="true", max_msg_nums=1)
        (b1,) = await receive(peer, order="true")
        assert (a1.body, b1.body) == (b"a1", b"b1")
        assert await receive(peer, order="true") == []
        assert (await ack(peer, a1)).code == ResponseCode.SUCCESS
        later = await receive(peer, order="true")
        assert bodies(later) == ["a2", "a3"]
        assert (await ack(peer, b1)).code == ResponseCode.SUCCESS
        pass_time(clock)
        again = await receive(peer, order="true")
        assert [(message.body, message.attempt) for message in again] == [(b"a2", 2), (b"a3", 2)]
        assert (await ack_all(peer, again)).code == ResponseCode.SUCCESS
        assert await peer.committed() == 4


async def test_an_ack_lets_a_waiting_member_continue_in_order(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        await keyed(peer, "a1", "a2")
        (a1,) = await receive(peer, order="true", max_msg_nums=1)
        waiting = asyncio.ensure_future(pop(peer, order="true", poll_time=20_000))
        await ack(peer, a1)
        assert bodies(received(await waiting)) == ["a2"]


async def test_a_message_in_order_becomes_a_dead_letter_after_its_attempts_and_frees_its_group(tmp_path: Path) -> None:
    clock = Clock()
    async with broker_peer(tmp_path, clock=clock) as peer:
        await peer.alter_group(retry_max_times=1)
        await keyed(peer, "a1", "a2")
        for attempt in (1, 2):
            (a1,) = await receive(peer, order="true", max_msg_nums=1)
            assert (a1.body, a1.attempt) == (b"a1", attempt)
            pass_time(clock)
        (a2,) = await receive(peer, order="true")
        assert (a2.body, a2.attempt) == (b"a2", 1)
        (dead,) = decode_many((await peer.pull(topic="%DLQ%g")).body)
        assert (dead.body, dead.reconsume_times) == (b"a1", 2)


@pytest.mark.parametrize("order", ["true", "false"])
async def test_the_same_attempt_gets_the_same_messages(tmp_path: Path, order: str) -> None:
    async with broker_peer(tmp_path) as peer:
        await keyed(peer, "a1", "a2")
        lost = await receive(peer, order=order, attempt_id="x")
        again = await receive(peer, order=order, attempt_id="x")
        assert [(message.body, message.attempt) for message in again] == [(b"a1", 1), (b"a2", 1)]
        assert (await ack(peer, lost[0])).code == ResponseCode.NO_MESSAGE
        assert await receive(peer, order=order, attempt_id="y") == []
        assert (await ack_all(peer, again)).code == ResponseCode.SUCCESS
        await keyed(peer, "a3")
        assert bodies(await receive(peer, order=order, attempt_id="x")) == ["a3"], "what is done blocks nothing"


# Over a restart.


@pytest.mark.parametrize("is_flushed", [False, True])
async def test_a_restart_keeps_who_holds_what(tmp_path: Path, is_flushed: bool) -> None:
    clock = Clock()
    store = {"flush_disk_type": FlushDiskType.SYNC_FLUSH} if is_flushed else {}
    async with broker_peer(tmp_path, store, clock) as peer:
        await send(peer, "a", "b", "c")
        a, b, c = await receive(peer)
        assert (await ack(peer, b)).code == ResponseCode.SUCCESS
        c = changed(c, await change(peer, c, 5 * MINUTE_MS))
    async with broker_peer(tmp_path, store, clock) as peer:
        assert await peer.committed() == 0
        assert await receive(peer) == []
        assert (await ack(peer, a)).code == ResponseCode.SUCCESS
        pass_time(clock)
        assert await receive(peer) == []
        pass_time(clock, 5 * MINUTE_MS)
        received: list[Any] = []

        async def is_received() -> bool:  # once its copy is on disk
            received.extend(await receive(peer))
            return bool(received)

        await until(is_received)
        (again,) = received
        assert (again.body, again.attempt) == (b"c", 2)
        assert await peer.committed() == 3


# What is refused.


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"max_msg_nums": 0}, ResponseCode.SYSTEM_ERROR),
        ({"max_msg_nums": 33}, ResponseCode.SYSTEM_ERROR),
        ({"invisible_time": 0}, ResponseCode.SYSTEM_ERROR),
        ({"invisible_time": 1 << 40}, ResponseCode.SYSTEM_ERROR),
        ({"topic": "absent"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": "%RETRY%g_T"}, ResponseCode.SYSTEM_ERROR),
        ({"queue_id": 1}, ResponseCode.SYSTEM_ERROR),
        ({"consumer_group": "g" * 130}, ResponseCode.SYSTEM_ERROR),
        ({"attempt_id": "x" * 513}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_what_cannot_be_received_is_refused(tmp_path: Path, fields: dict[str, Any], code: int) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.alter_topic()
        assert (await pop(peer, **fields)).code == code


async def test_a_handle_of_something_else_is_refused(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        await send(peer, "a", "b")
        a, b = await receive(peer)
        assert (await ack(peer, dataclasses.replace(a, handle="1 2 3 4 5"))).code == ResponseCode.SYSTEM_ERROR
        assert (await ack(peer, dataclasses.replace(a, handle=b.handle))).code == ResponseCode.MESSAGE_ILLEGAL
        parts = a.handle.split(" ")
        parts[1] = str(int(parts[1]) - 1)
        assert (await ack(peer, dataclasses.replace(a, handle=" ".join(parts)))).code == ResponseCode.NO_MESSAGE
        assert (await ack(peer, a, group="stranger")).code == ResponseCode.NO_MESSAGE
        assert (await ack_all(peer, [])).code == ResponseCode.MESSAGE_ILLEGAL


# For operators.


async def test_the_status_says_who_holds_what_and_what_blocks_a_queue(tmp_path: Path) -> None:
    clock = Clock()
    async with broker_peer(tmp_path, clock=clock) as peer:
        await keyed(peer, "a1", "a2", "b1")

        async def status() -> PopQueueStatus:
            header = PopStatusRequestHeader(consumer_group="g")
            answer = await peer.ask(RequestCode.GET_POP_STATUS, header)
            (queue,) = decode_body(PopStatus, answer.body).queues
            return queue

        (a1,) = await receive(peer, order="true", max_msg_nums=1)
        first = await status()
        assert (first.ready, first.in_flight, first.waiting, first.blocked) == (2, 1, 0, "")
        (b1,) = await receive(peer, order="true")
        now = await status()
        assert (now.ready, now.in_flight, now.waiting, now.committed_offset) == (0, 2, 1, 0)
        assert "0" in now.blocked
        held = {one.queue_offset: one for one in now.messages}
        assert (held[0].attempt, held[0].message_group) == (1, "a")
        assert held[0].client.startswith("127.0.0.1:")
        assert 0 < held[0].visible_ms - held[0].pop_time_ms <= 2 * MINUTE_MS
        assert abs(now.oldest_ms - clock()) < MINUTE_MS
        release = ReleasePopRequestHeader(consumer_group="g", topic="T", offset=0)
        assert (await peer.ask(RequestCode.RELEASE_POP, release)).ext_fields["count"] == "1"
        assert (await ack(peer, a1)).code == ResponseCode.NO_MESSAGE
        assert (await ack(peer, b1)).code == ResponseCode.SUCCESS
        again = await receive(peer, order="true")
        assert [(message.body, message.attempt) for message in again] == [(b"a1", 2), (b"a2", 1)]


# Faults that others had.


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_lost_member_holds_nothing_after_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    monkeypatch.setattr(serving, "RELEASE_LOST_INTERVAL_MS", 20)
    clock, found = Clock(), list[Received]()
    one: dict[str, Any] = {"max_msg_nums": 1, "invisible_time": 12 * 60 * MINUTE_MS}

    async def others_receive(peer: Peer) -> bool:
        await peer.ask(RequestCode.HEART_BEAT, body=heartbeat("stays"))
        found.extend(await receive(peer))
        if not found:
            pass_time(clock, 5_000)
        return bool(found)

    async with broker_peer(tmp_path, clock=clock) as peer:
        await peer.alter_topic()
        await send(peer, "lost", "kept", "simple", "delayed")
        await peer.ask(RequestCode.HEART_BEAT, body=heartbeat("stays"))
        lost = Peer(peer.broker, RemotingClient())
        await lost.ask(RequestCode.HEART_BEAT, body=heartbeat("goes"))
        assert bodies(await receive(lost, **one, client_id="goes")) == ["lost"]
        assert bodies(await receive(peer, **one, client_id="stays")) == ["kept"]
        assert bodies(await receive(lost, **one)) == ["simple"]
        (delayed,) = await receive(lost, **one, client_id="goes")
        await change(lost, delayed, 12 * 60 * MINUTE_MS)
        await lost.client.close()
        if not restarts:
            await until(lambda: others_receive(peer))
    if restarts:
        async with broker_peer(tmp_path, clock=clock) as peer:
            await until(lambda: others_receive(peer))
    assert [(message.body, message.attempt) for message in found] == [(b"lost", 2)]
    assert clock.ahead_ms >= MINUTE_MS


async def test_a_client_that_is_gone_takes_no_message_with_it(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.alter_topic()
        lost = Peer(peer.broker, RemotingClient())
        gone = asyncio.ensure_future(pop(lost, poll_time=20_000))

        async def held() -> int:
            header = PollingInfoRequestHeader(consumer_group="g", topic="T", queue_id=-1)
            return int((await peer.ask(RequestCode.POLLING_INFO, header)).ext_fields["pollingNum"])

        async def is_held() -> bool:
            return await held() == 1

        async def is_forgotten() -> bool:
            return await held() == 0

        await until(is_held)
        await lost.client.close()
        await asyncio.wait([gone])
        await until(is_forgotten)
        await send(peer, "a")
        assert bodies(await receive(peer)) == ["a"]


async def test_an_answered_acknowledgement_is_on_disk_with_sync_flush(tmp_path: Path) -> None:
    async with broker_peer(tmp_path, {"flush_disk_type": FlushDiskType.SYNC_FLUSH}) as peer:
        await send(peer, "a", "b")
        a, b = await receive(peer)
        assert peer.broker.parts is not None
        store = peer.broker.parts.storage.store
        for answer in (ack(peer, a), change(peer, b, MINUTE_MS), ack(peer, a)):
            assert (await answer).code == ResponseCode.SUCCESS
            assert store.flushed_physical_offset == store.max_physical_offset


async def test_a_group_without_settings_of_its_own_gets_no_message_twice(tmp_path: Path) -> None:
    """That of light message queues is in no table; what it holds and has done must stay known, amid all clean-ups."""
    group, clock, lmq = {"consumer_group": "%LMQ%g"}, Clock(), {"enable_lmq": True}
    async with broker_peer(tmp_path, lmq, clock=clock, auto_create_subscription_group=False) as peer:
        await send(peer, *"abcdef")
        first, second, *_ = await receive(peer, **group)
        assert (await ack_all(peer, [first, second], "%LMQ%g")).code == ResponseCode.SUCCESS
        await peer.ask(RequestCode.CLEAN_UNUSED_TOPIC)
        await peer.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
        clock.ahead_ms += 30_000
        assert await receive(peer, **group) == []
    async with broker_peer(tmp_path, lmq, clock=clock, auto_create_subscription_group=False) as peer:
        assert await receive(peer, **group) == []
        pass_time(clock)
        again = await receive(peer, **group)
        assert sorted(bodies(again)) == list("cdef")
        assert {message.attempt for message in again} == {2}


async def test_every_queue_and_the_retries_have_their_turn(tmp_path: Path) -> None:
    """Also if the receives of two groups alternate, and there is always more to read."""
    async with broker_peer(tmp_path) as peer:
        await peer.alter_topic(queues=2)
        for number in range(200):
            await send(peer, "x", queue_id=number % 2)
        for group in ("g", "h"):
            (failed,) = await receive(peer, consumer_group=group, max_msg_nums=1, invisible_time=1)
        seen: dict[str, set[tuple[int, int]]] = {"g": set(), "h": set()}
        for _ in range(60):
            for group, found in seen.items():
                (message,) = await receive(peer, consumer_group=group, max_msg_nums=1)
                found.add((message.attempt, message.queue_id if message.attempt == 1 else 0))
        assert all(found == {(1, 0), (1, 1), (2, 0)} for found in seen.values())
        assert failed.attempt == 1
