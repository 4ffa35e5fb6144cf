"""Filters by properties: what heartbeats register, what pulls get, and the file in Apache's shape."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rucola import slices
from rucola.broker.bloom import bloom_filter_positions
from rucola.broker.config import BrokerConfig
from rucola.broker.limits import Limits
from rucola.broker.tables.consumer_filters import ConsumerFilterTable
from rucola.domain.client import ConsumerData, HeartbeatData
from rucola.domain.subscription import SubscriptionData, subscription
from rucola.message.record import decode_many
from rucola.protocol import pull
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.connections import CheckClientRequestBody
from rucola.protocol.pull import PullMessageResponseHeader
from rucola.protocol.query import QueryConsumeQueueRequestHeader, QueryConsumeQueueResponseBody
from support.broker_peer import broker_peer
from support.peer import Peer

T0 = 1_800_000_000_000
DAY_MS = 24 * 3600 * 1000


def by_properties(expression: str, version: int = 1, topic: str = "T", kind: str = "SQL92") -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string=expression, expression_type=kind, sub_version=version)


async def subscribe(peer: Peer, *subscriptions: SubscriptionData, group: str = "g") -> None:
    consumer = ConsumerData(group_name=group, subscription_data_set=list(subscriptions))
    beat = HeartbeatData(client_id="c", consumer_data_set=[consumer])
    assert (await peer.ask(RequestCode.HEART_BEAT, body=encode_body(beat))).code == ResponseCode.SUCCESS


def bodies(answer: RemotingCommand) -> list[bytes]:
    return [message.body for message in decode_many(answer.body)]


# The table and its file.


@pytest.fixture
def table(tmp_path: Path) -> ConsumerFilterTable:
    return filter_table(tmp_path)


def filter_table(path: Path, **config: Any) -> ConsumerFilterTable:
    settings = BrokerConfig(**{"enable_property_filter": True, **config})
    return ConsumerFilterTable(path / "consumerFilter.json", settings, Limits(settings))


def test_bloom_filter_positions_equal_apaches() -> None:
    assert bloom_filter_positions("G_g_sql#GSql") == [44, 64, 84]
    assert bloom_filter_positions("") == [0, 0, 0]
    assert all(0 <= place < 112 for length in range(50) for place in bloom_filter_positions("é" * length))


def test_apaches_filter_file_round_trips(golden: Path, tmp_path: Path, table: ConsumerFilterTable) -> None:
    recorded = golden / "g1-clean/store/config/consumerFilter.json"
    shutil.copy(recorded, tmp_path)
    table.load(T0)
    matches = table.matches("GSql", "G_g_sql")
    assert matches is not None
    assert [matches({"a": "2", "TAGS": "S0"}), matches({"a": "8", "TAGS": "S0"}), matches({"a": "7"})] == [
        True,
        False,
        False,
    ]
    (tmp_path / "consumerFilter.json").unlink()
    died = json.loads(recorded.read_text())["filterDataByTopic"]["GSql"]["groupFilterData"]["G_g_sql"]["deadTime"]
    slices.run(table.snapshot_steps(died + DAY_MS - 1))()
    assert (tmp_path / "consumerFilter.json").read_text() == recorded.read_text()
    slices.run(table.snapshot_steps(died + DAY_MS))()
    assert table.get("GSql", "G_g_sql") is None
    assert json.loads((tmp_path / "consumerFilter.json").read_text()) == {"filterDataByTopic": {}}


async def test_a_full_table_keeps_its_filters_and_adds_none(tmp_path: Path) -> None:
    table = filter_table(tmp_path, max_consumer_filters=2)
    for group in ("g", "h", "i"):
        table.register(group, [by_properties("a > 1")], T0)
    assert [table.get("T", group) is not None for group in ("g", "h", "i")] == [True, True, False]
    table.register("g", [subscription("T", "*")], T0)
    table.register("i", [by_properties("a > 1")], T0)
    assert table.matches("T", "i") is not None


def test_loaded_filters_count_as_offline_until_a_heartbeat(tmp_path: Path, table: ConsumerFilterTable) -> None:
    table.register("g", [by_properties("a > 1")], T0)
    slices.run(table.snapshot_steps(T0))()
    again = filter_table(tmp_path)
    again.load(T0 + 60_000)
    data = again.get("T", "g")
    assert data is not None
    assert (data.dead, data.dead_time, data.born_time) == (True, T0 + 30_000, T0)
    again.register("g", [by_properties("a > 1")], T0 + 70_000)
    assert (data.dead, data.dead_time, data.born_time) == (False, 0, T0)


def test_a_newer_subscription_version_replaces_an_older_one(table: ConsumerFilterTable) -> None:
    def known() -> tuple[str, int, int] | None:
        data = table.get("T", "g")
        return data and (data.expression, data.client_version, data.born_time)

    table.register("g", [by_properties("a = 1", 5)], T0)
    table.register("g", [by_properties("a = 2", 4)], T0 + 1)
    table.register("g", [by_properties("a = 2", 5)], T0 + 2)
    assert known() == ("a = 1", 5, T0)
    table.register("g", [by_properties("a = 1", 6)], T0 + 3)
    assert known() == ("a = 1", 6, T0)
    table.register("g", [by_properties("a = 2", 7)], T0 + 4)
    assert known() == ("a = 2", 7, T0 + 4)
    matches = table.matches("T", "g")
    assert matches is not None
    assert matches({"a": "2"})
    table.register("g", [by_properties("a = ", 8)], T0 + 5)
    assert (known(), table.matches("T", "g")) == (None, None)
    table.register("g", [by_properties("a = 1", 9, kind="XPATH")], T0 + 6)
    assert known() is None


def test_a_filter_ends_when_the_group_leaves_or_switches_to_tags(table: ConsumerFilterTable) -> None:
    both = [by_properties("a = 1"), by_properties("b = 1", topic="U")]
    table.register("g", both, T0)
    table.register("other", both, T0)
    table.register("g", both[:1], T0 + 1)
    alive, left = table.get("T", "g"), table.get("U", "g")
    assert alive is not None
    assert left is not None
    assert (alive.dead, left.dead, left.dead_time) == (False, True, T0 + 1)
    table.unregister("g", T0 + 2)
    assert (alive.dead_time, left.dead_time) == (T0 + 2, T0 + 1)
    table.register("g", [SubscriptionData(topic="T")], T0 + 3)
    assert table.get("T", "g") is None
    assert table.get("T", "other") is not None


# Pulls.


async def send_numbers(peer: Peer, count: int = 6) -> None:
    for number in range(count):
        answer = await peer.send(b"%d" % number, properties=f"a\x01{number}\x02TAGS\x01{'AB'[number % 2]}\x02")
        assert answer.code == ResponseCode.SUCCESS


@asynccontextmanager
async def numbers(path: Path, count: int = 6) -> AsyncIterator[Peer]:
    """A broker that filters by properties, with so many messages."""
    async with broker_peer(path, enable_property_filter=True) as peer:
        await send_numbers(peer, count)
        yield peer


async def test_a_pull_returns_messages_that_the_groups_expression_matches(tmp_path: Path) -> None:
    async with numbers(tmp_path) as peer:
        await subscribe(peer, by_properties("a > 1 AND TAGS = 'B'", 7))
        answer = await peer.pull(sys_flag=0, sub_version=7)
        assert (answer.code, bodies(answer)) == (ResponseCode.SUCCESS, [b"3", b"5"])
        assert answer.decode_header(PullMessageResponseHeader).next_begin_offset == 6
        assert bodies(await peer.pull(sys_flag=0, queue_offset=4)) == [b"5"]
        nothing = await peer.pull(sys_flag=0, queue_offset=4, max_msg_nums=1, sub_version=7)
        assert bodies(nothing) == [b"5"]


async def test_the_filter_of_a_group_can_be_queried(tmp_path: Path) -> None:
    async with numbers(tmp_path) as peer:
        await subscribe(peer, by_properties("a > 1", 7))
        header = QueryConsumeQueueRequestHeader(topic="T", queue_id=0, index=0, count=1, consumer_group="g")
        answer = decode_body(
            QueryConsumeQueueResponseBody, (await peer.ask(RequestCode.QUERY_CONSUME_QUEUE, header)).body
        )
        data = json.loads(answer.filter_data or "")
        assert (data["expression"], data["clientVersion"], data["dead"]) == ("a > 1", 7, False)
        assert answer.subscription_data is not None
        assert answer.subscription_data.expression_type == "SQL92"


async def test_a_pull_may_carry_its_own_expression(tmp_path: Path) -> None:
    async with numbers(tmp_path) as peer:
        assert bodies(await peer.pull(subscription="a BETWEEN 1 AND 2", expression_type="SQL92")) == [b"1", b"2"]
        nothing = await peer.pull(subscription="a > 99", expression_type="SQL92")
        assert (nothing.code, nothing.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
        assert nothing.decode_header(PullMessageResponseHeader).next_begin_offset == 6
        assert bodies(await peer.pull(subscription="A", expression_type="")) == [b"0", b"2", b"4"]


async def test_a_held_pull_wakes_for_a_message_that_matches(tmp_path: Path) -> None:
    async with numbers(tmp_path, 1) as peer:
        await subscribe(peer, by_properties("a = 2"))
        held = asyncio.ensure_future(peer.pull(queue_offset=1, sys_flag=pull.SUSPEND, suspend_timeout_millis=60_000))
        await peer.pull(sys_flag=0)  # answered after the pull before it has been taken in, being on one connection
        await send_numbers(peer, 2)
        assert bodies(await peer.pull()) == [b"0", b"0", b"1"]
        assert not held.done()
        await send_numbers(peer, 3)
        assert bodies(await asyncio.wait_for(held, 30)) == [b"2"]


async def test_an_invalid_filter_is_refused_with_a_reason(tmp_path: Path) -> None:
    async with numbers(tmp_path) as peer:
        own = await peer.pull(subscription="a >", expression_type="SQL92")
        assert own.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert "position 3: more is expected" in (own.remark or "")
        unknown = await peer.pull(subscription="a", expression_type="XPATH")
        assert unknown.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert "use TAG or SQL92" in (unknown.remark or "")
        await subscribe(peer, by_properties("a >"))
        assert (await peer.pull(sys_flag=0)).code == ResponseCode.FILTER_DATA_NOT_EXIST
        await subscribe(peer, by_properties("a > 3", 2))
        assert bodies(await peer.pull(sys_flag=0, sub_version=2)) == [b"4", b"5"]
        assert (await peer.pull(sys_flag=0, sub_version=3)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST


async def test_property_filters_are_refused_by_default(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        await send_numbers(peer)
        await subscribe(peer, by_properties("a > 3"))
        for refused in (
            await peer.pull(sys_flag=0),
            await peer.pull(subscription="a > 3", expression_type="SQL92"),
            await check(peer, by_properties("a > 3")),
        ):
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert "does not support consumer to filter message by SQL92" in (refused.remark or "")
            assert "enablePropertyFilter" in (refused.remark or "")


async def check(peer: Peer, wanted: SubscriptionData | None) -> RemotingCommand:
    body = CheckClientRequestBody(client_id="c", group="g", subscription_data=wanted)
    return await peer.ask(RequestCode.CHECK_CLIENT_CONFIG, body=encode_body(body))


async def test_a_consumer_can_have_its_subscription_checked(tmp_path: Path) -> None:
    async with broker_peer(tmp_path, enable_property_filter=True) as peer:
        for right in (None, SubscriptionData(topic="T"), by_properties("A || B", kind=""), by_properties("a > 3")):
            assert (await check(peer, right)).code == ResponseCode.SUCCESS
        assert (await peer.ask(RequestCode.CHECK_CLIENT_CONFIG, body=b"{}")).code == ResponseCode.SUCCESS
        assert (await peer.ask(RequestCode.CHECK_CLIENT_CONFIG)).code == ResponseCode.SYSTEM_ERROR
        for wrong, why in (
            (by_properties("a > 3 4"), "position 6: '4' is not expected"),
            (by_properties("a", kind="XPATH"), "XPATH"),
            (by_properties("||", kind="TAG"), "names no tag"),
        ):
            answer = await check(peer, wrong)
            assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
            assert why in (answer.remark or "")


@pytest.mark.parametrize(("looks_again", "found"), [(True, [b"one", b"other"]), (False, [b"one", b"two", b"other"])])
async def test_retries_are_filtered_by_the_groups_current_expression(
    tmp_path: Path, looks_again: bool, found: list[bytes]
) -> None:
    async with broker_peer(tmp_path, enable_property_filter=True, filter_support_retry=looks_again) as peer:
        await subscribe(peer, by_properties("a = 1"), SubscriptionData(topic="%RETRY%g"))
        for body, number, topic in ((b"one", 1, "T"), (b"two", 2, "T"), (b"other", 2, "Other")):
            pairs = f"a\x01{number}\x02RETRY_TOPIC\x01{topic}\x02"
            assert (await peer.send(body, topic="%RETRY%g", properties=pairs)).code == ResponseCode.SUCCESS
        assert bodies(await peer.pull(sys_flag=0, topic="%RETRY%g")) == found


async def test_filters_survive_a_restart_and_end_with_their_group(tmp_path: Path) -> None:
    async with numbers(tmp_path) as peer:
        await subscribe(peer, by_properties("a > 3", 2))
    kept = json.loads((tmp_path / "config" / "consumerFilter.json").read_text())
    data = kept["filterDataByTopic"]["T"]["groupFilterData"]["g"]
    assert data.pop("bornTime") <= data.pop("deadTime")
    assert data == {
        "bloomFilterData": {"bitNum": 112, "bitPos": bloom_filter_positions("g#T")},
        "clientVersion": 2,
        "consumerGroup": "g",
        "dead": True,
        "expression": "a > 3",
        "expressionType": "SQL92",
        "topic": "T",
    }
    async with broker_peer(tmp_path, enable_property_filter=True) as peer:
        await subscribe(peer, by_properties("a > 4", 1))  # older than what the file knows
        assert bodies(await peer.pull(sys_flag=0, sub_version=1)) == [b"4", b"5"]


async def test_a_large_body_that_does_not_match_is_skipped(tmp_path: Path) -> None:
    async with broker_peer(tmp_path, enable_property_filter=True) as peer:
        for number in range(3):
            await peer.send(bytes(100_000), properties=f"a\x01{number}\x02")
        answer = await peer.pull(subscription="a = 2", expression_type="SQL92")
        assert answer.decode_header(PullMessageResponseHeader).next_begin_offset == 3
        assert len(bodies(answer)) == 1


async def test_a_broker_without_property_filters_neither_compiles_nor_stores_one(tmp_path: Path) -> None:
    table = filter_table(tmp_path, enable_property_filter=False)
    table.register("g", [subscription("T", "a > 5", "SQL92")], 1_800_000_000_000)
    assert table.get("T", "g") is None
