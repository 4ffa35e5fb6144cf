"""Queries by key: complete for any page size, clock and index, or with a report of what may be missing."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rucola.admin import PAGE, AdminClient, KeyQueryResult
from rucola.broker.config import BrokerConfig
from rucola.broker.remoting.query import QueryAdapter
from rucola.broker.services.query import QueryService
from rucola.broker.tiered_store import TieredStore
from rucola.cli.main import main
from rucola.client import Message, Producer
from rucola.errors import ConfigError
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.connection import Connection, Reply
from rucola.remoting.endpoints import processor_table
from rucola.store.config import StoreConfig
from rucola.store.message_store import MessageStore
from support.cluster import SMALL_FILES, cluster
from support.errors import raises
from support.prepared_stores import NOW_MS, TOPIC, cluster_of_stores, fill_store

HOUR_MS = 3_600_000


def numbered(count: int, step_ms: int, keys: str = "k") -> list[tuple[str, str, int]]:
    return [(keys, f"U{number}", NOW_MS + step_ms * number) for number in range(count)]


@pytest.mark.parametrize(("page", "step_ms"), [(PAGE, 100), (PAGE, 0), (5, 100), (5, 0), (1, 0), (500, 0)])
async def test_a_key_query_continues_after_a_full_page(tmp_path: Path, page: int, step_ms: int) -> None:
    """Whatever maxMsgsNumBatch is, and though all messages are of one second, which the index cannot tell apart."""
    count = 3 * PAGE + 5
    fill_store(tmp_path, numbered(count, step_ms, "k other"))

    async with cluster_of_stores(tmp_path, store={"max_msgs_num_batch": page}) as (admin, _, _):
        everything = await admin.messages.query_by_key(TOPIC, "k", max_count=1000)
        assert [message.queue_offset for message in everything.messages] == list(reversed(range(count)))
        assert not everything.is_cut
        newest = await admin.messages.query_by_key(TOPIC, "k", max_count=100)
        assert newest.messages == everything.messages[:100]
        assert newest.is_cut
        exactly = await admin.messages.query_by_key(TOPIC, "other", max_count=count)
        assert (len(exactly.messages), exactly.is_cut) == (count, False)


async def test_a_message_with_a_repeated_key_is_found_once(tmp_path: Path) -> None:
    fill_store(tmp_path, numbered(20, 0, "k k"))

    async with cluster_of_stores(tmp_path, store={"max_msgs_num_batch": 5}) as (admin, _, _):
        found = await admin.messages.query_by_key(TOPIC, "k")
        assert [message.queue_offset for message in found.messages] == list(reversed(range(20)))


async def test_a_key_query_keeps_the_exact_time_window(tmp_path: Path) -> None:
    """The index knows whole seconds only, counted from its first message."""
    fill_store(tmp_path, [("k", "U", NOW_MS + 999 + 100 * number) for number in range(100)])

    async with cluster_of_stores(tmp_path) as (admin, _, _):
        for begin_ms, end_ms in ((1099, 1999), (1100, 1998), (999, 999), (5000, 9000), (20_000, 30_000)):
            found = await admin.messages.query_by_key(TOPIC, "k", 1000, NOW_MS + begin_ms, NOW_MS + end_ms)
            offsets = [n for n in range(100) if begin_ms <= 999 + 100 * n <= end_ms]
            assert [message.queue_offset for message in found.messages] == offsets[::-1]
            assert not found.is_cut


async def test_a_key_query_finds_messages_stored_after_the_clock_was_set_back(tmp_path: Path) -> None:
    """A message that is older than the first of its index file has no time of its own there."""
    ahead = [("k", f"A{number}", NOW_MS + 3 * HOUR_MS + number) for number in range(3)]
    fill_store(tmp_path, ahead + numbered(3, 1000))

    async with cluster_of_stores(tmp_path) as (admin, _, _):
        found = await admin.messages.query_by_key(TOPIC, "k", 100, NOW_MS, NOW_MS + HOUR_MS)
        assert [message.unique_key for message in found.messages] == ["U2", "U1", "U0"]
        found = await admin.messages.query_by_key(TOPIC, "k", 100, NOW_MS + HOUR_MS)
        assert [message.unique_key for message in found.messages] == ["A2", "A1", "A0"]
        everything = await admin.messages.query_by_key(TOPIC, "k")
        assert [message.unique_key for message in everything.messages] == ["A2", "A1", "A0", "U2", "U1", "U0"]


async def test_a_key_query_is_unaffected_by_concurrent_puts(tmp_path: Path) -> None:
    """200 hits in pages of 7, with more of them coming between two pages."""
    fill_store(tmp_path, numbered(200, 0), "broker-a")
    fill_store(tmp_path, [("other", "B", NOW_MS)], "broker-b")

    async with cluster_of_stores(tmp_path, store={"max_msgs_num_batch": 7}) as (admin, _, running):
        async with Producer("p", running.namesrv) as producer:
            asking = asyncio.create_task(admin.messages.query_by_key(TOPIC, "k", 1000))
            while not asking.done():
                await producer.send(Message(TOPIC, b"new", keys="k"))
        found = (await asking).messages
        old = [message.queue_offset for message in found if message.store_timestamp == NOW_MS]
        assert old == list(reversed(range(200)))
        assert len({(message.store_host, message.physical_offset) for message in found}) == len(found) >= 200


async def test_a_key_query_leaves_out_hash_collisions(tmp_path: Path) -> None:
    """`Aa` and `BB` have one hash; a page full of strangers does not hide the message that was asked for."""
    times = [("BB", NOW_MS)] + [("Aa", NOW_MS + 1000 * number) for number in range(1, 2 * PAGE)]
    fill_store(tmp_path, [(key, f"U{number}", time_ms) for number, (key, time_ms) in enumerate(times)])

    async with cluster_of_stores(tmp_path) as (admin, _, _):
        result = await admin.messages.query_by_key("Orders", "BB")
        assert [message.unique_key for message in result.messages] == ["U0"]
        assert not result.is_cut


@pytest.mark.parametrize("page", [PAGE, 7])
async def test_a_key_query_continues_after_a_page_of_hash_collisions(tmp_path: Path, page: int) -> None:
    times = [("BB", NOW_MS)] + [("Aa", NOW_MS) for _ in range(2 * PAGE)]
    fill_store(tmp_path, [(key, f"U{number}", time_ms) for number, (key, time_ms) in enumerate(times)])

    async with cluster_of_stores(tmp_path, store={"max_msgs_num_batch": page}) as (admin, _, _):
        result = await admin.messages.query_by_key(TOPIC, "BB")
        assert ([message.unique_key for message in result.messages], result.is_cut) == (["U0"], False)


async def test_a_key_query_reports_the_searchable_time_range(tmp_path: Path) -> None:
    fill_store(tmp_path, numbered(3, 1000), "broker-a")
    fill_store(tmp_path, [], "broker-b")

    async with cluster_of_stores(tmp_path) as (admin, brokers, _):
        result = await admin.messages.query_by_key(TOPIC, "nobody")
        assert (result.messages, result.is_cut, result.failures) == ([], False, {})
        assert result.index_ranges == {brokers[0].address: (NOW_MS, NOW_MS + 2000), brokers[1].address: (0, 0)}


async def test_a_deleted_index_is_rebuilt_at_start(tmp_path: Path) -> None:
    """The broker makes it anew when it starts."""
    fill_store(tmp_path, numbered(3, 1000))
    shutil.rmtree(tmp_path / "broker-a" / "index")

    async with cluster_of_stores(tmp_path) as (admin, brokers, _):
        result = await admin.messages.query_by_key(TOPIC, "k")
        assert len(result.messages) == 3
        assert result.index_ranges == {brokers[0].address: (NOW_MS, NOW_MS + 2000)}


async def test_a_key_query_without_any_index_is_refused(tmp_path: Path) -> None:
    fill_store(tmp_path, numbered(3, 1000), "broker-a")
    fill_store(tmp_path, numbered(3, 1000), "broker-b")

    async with cluster_of_stores(tmp_path, store={"message_index_enable": False}) as (admin, brokers, _):
        with raises(ConfigError, subject=brokers[0].address):
            await admin.messages.query_by_key(TOPIC, "k")


async def ask_apache(path: Path, times_ms: list[int], keys: str = "BB") -> tuple[KeyQueryResult, str, Result]:
    """What a query for BB finds at a broker, the broker's address, and what `queryMsgByKey` says of it."""
    store_config = StoreConfig(store_path_root_dir=path, **SMALL_FILES)
    fill_store(path.parent, [(keys, f"U{number}", time_ms) for number, time_ms in enumerate(times_ms)], path.name)

    with MessageStore(store_config) as store:
        adapter = QueryAdapter(QueryService(BrokerConfig(bind_address="127.0.0.1"), TieredStore(store)))
        answer = processor_table(adapter.endpoints(), ())[RequestCode.QUERY_MESSAGE]

        def query_message(connection: Connection, command: RemotingCommand) -> Reply:
            del command.ext_fields["_BEFORE_PHYSICAL_OFFSET"]
            return answer(connection, command)

        async with cluster(path) as running:
            processors = {RequestCode.QUERY_MESSAGE: query_message}
            broker = await running.scripted_broker("broker-a", TOPIC, processors)  # type: ignore[arg-type]
            async with AdminClient(running.namesrv) as admin:
                found = await admin.messages.query_by_key(TOPIC, "BB", max_count=1000)
                assert found.index_ranges == {}, "it does not tell"
            command = ["admin", "queryMsgByKey", "-n", running.namesrv, "-t", TOPIC, "-k", "BB", "-m", "1000"]
            return found, f"127.0.0.1:{broker.port}", await asyncio.to_thread(CliRunner().invoke, main, command)


async def test_pages_of_apaches_broker_follow_each_other_by_time(tmp_path: Path) -> None:
    times_ms = [NOW_MS + 100 * number for number in range(3 * PAGE + 5)]
    found, _, said = await ask_apache(tmp_path / "a", times_ms)
    assert [message.queue_offset for message in found.messages] == list(reversed(range(len(times_ms))))
    assert (found.is_cut, found.incomplete_seconds) == (False, {})
    assert (said.exit_code, said.stderr) == (0, "")


async def test_a_key_query_reports_a_second_with_more_than_one_page_at_apaches_broker(tmp_path: Path) -> None:
    """What is older is found, but the answer is cut, and says which second, and what would help."""
    times_ms = [NOW_MS, *(PAGE + 10) * [NOW_MS + 5000], NOW_MS + 9000]
    found, address, said = await ask_apache(tmp_path / "a", times_ms)
    offsets = [message.queue_offset for message in found.messages]
    assert (found.is_cut, found.incomplete_seconds) == (True, {address: [(NOW_MS + 5000) // 1000 * 1000]})
    assert (offsets[0], offsets[-1]) == (len(times_ms) - 1, 0)
    assert len(offsets) >= PAGE
    (line,) = said.stderr.splitlines()
    assert line.startswith(f"there are at least {len(offsets)}: {address} returns at most")
    assert f"-b {address} -k maxMsgsNumBatch" in line
    assert said.exit_code == 0


async def test_a_key_query_reports_a_second_full_of_hash_collisions(tmp_path: Path) -> None:
    """All that the index gives are messages with another key of the same hash."""
    found, address, said = await ask_apache(tmp_path / "a", (PAGE + 10) * [NOW_MS], keys="Aa")
    assert (found.messages, found.is_cut, list(found.incomplete_seconds)) == ([], True, [address])
    assert said.exit_code == 0
    assert "there are at least 0" in said.stderr
