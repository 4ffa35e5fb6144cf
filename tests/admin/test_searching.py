"""Queries by key: all is found whatever the broker's page, clock and index, or the answer says what is missing."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rucola.admin import PAGE, AdminClient, KeyQueryResult
from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig
from rucola.broker.remoting.query import QueryAdapter
from rucola.broker.services.query import QueryService
from rucola.cli.main import main
from rucola.client import Message, Producer
from rucola.errors import ConfigError
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.connection import Connection, Reply
from rucola.remoting.endpoints import processor_table
from rucola.store.config import StoreConfig
from rucola.store.message_store import MessageStore
from support.cluster import SMALL_FILES, Cluster, cluster
from support.filled import NOW_MS, TOPIC, ask, fill

HOUR_MS = 3_600_000


def numbered(count: int, step_ms: int, keys: str = "k") -> list[tuple[str, str, int]]:
    return [(keys, f"U{number}", NOW_MS + step_ms * number) for number in range(count)]


@pytest.mark.parametrize(("page", "step_ms"), [(PAGE, 100), (PAGE, 0), (5, 100), (5, 0), (1, 0), (500, 0)])
def test_a_key_query_goes_on_where_a_page_is_full(tmp_path: Path, page: int, step_ms: int) -> None:
    """Whatever maxMsgsNumBatch is, and though all messages are of one second, which the index cannot tell apart."""
    count = 3 * PAGE + 5
    fill(tmp_path, numbered(count, step_ms, "k other"))

    async def question(admin: AdminClient, brokers: list[Broker], running: Cluster) -> None:
        everything = await admin.query_message_by_key(TOPIC, "k", max_count=1000)
        assert [message.queue_offset for message in everything.messages] == list(reversed(range(count)))
        assert not everything.is_cut
        newest = await admin.query_message_by_key(TOPIC, "k", max_count=100)
        assert newest.messages == everything.messages[:100]
        assert newest.is_cut
        exactly = await admin.query_message_by_key(TOPIC, "other", max_count=count)
        assert (len(exactly.messages), exactly.is_cut) == (count, False)

    ask(tmp_path, question, store={"max_msgs_num_batch": page})


def test_a_key_that_a_message_has_twice(tmp_path: Path) -> None:
    fill(tmp_path, numbered(20, 0, "k k"))

    async def question(admin: AdminClient, brokers: list[Broker], running: Cluster) -> None:
        found = await admin.query_message_by_key(TOPIC, "k")
        assert [message.queue_offset for message in found.messages] == list(reversed(range(20)))

    ask(tmp_path, question, store={"max_msgs_num_batch": 5})


def test_a_window_is_exact(tmp_path: Path) -> None:
    """The index knows whole seconds only, counted from its first message."""
    fill(tmp_path, [("k", "U", NOW_MS + 999 + 100 * number) for number in range(100)])

    async def question(admin: AdminClient, brokers: list[Broker], running: Cluster) -> None:
        for begin_ms, end_ms in ((1099, 1999), (1100, 1998), (999, 999), (5000, 9000), (20_000, 30_000)):
            found = await admin.query_message_by_key(TOPIC, "k", 1000, NOW_MS + begin_ms, NOW_MS + end_ms)
            offsets = [n for n in range(100) if begin_ms <= 999 + 100 * n <= end_ms]
            assert [message.queue_offset for message in found.messages] == offsets[::-1]
            assert not found.is_cut

    ask(tmp_path, question)


def test_a_clock_that_was_set_back_hides_nothing(tmp_path: Path) -> None:
    """A message that is older than the first of its index file has no time of its own there."""
    ahead = [("k", f"A{number}", NOW_MS + 3 * HOUR_MS + number) for number in range(3)]
    fill(tmp_path, ahead + numbered(3, 1000))

    async def question(admin: AdminClient, brokers: list[Broker], running: Cluster) -> None:
        found = await admin.query_message_by_key(TOPIC, "k", 100, NOW_MS, NOW_MS + HOUR_MS)
        assert [message.unique_key for message in found.messages] == ["U2", "U1", "U0"]
        found = await admin.query_message_by_key(TOPIC, "k", 100, NOW_MS + HOUR_MS)
        assert [message.unique_key for message in found.messages] == ["A2", "A1", "A0"]
        everything = await admin.query_message_by_key(TOPIC, "k")
        assert [message.unique_key for message in everything.messages] == ["A2", "A1", "A0", "U2", "U1", "U0"]

    ask(tmp_path, question)


def test_messages_that_come_in_meanwhile_disturb_nothing(tmp_path: Path) -> None:
    """200 hits in pages of 7, with more of them coming between two pages."""
    fill(tmp_path, numbered(200, 0), "broker-a")
    fill(tmp_path, [("other", "B", NOW_MS)], "broker-b")

    async def question(admin: AdminClient, brokers: list[Broker], running: Cluster) -> None:
        found = []
        async with Producer("p", running.namesrv) as producer:
            async for message in admin.key_query(TOPIC, "k"):
                found.append(message)
                await producer.send(Message(TOPIC, b"new", keys="k"))
        old = [message.queue_offset for message in found if message.store_timestamp == NOW_MS]
        assert old == list(reversed(range(200)))
        assert len({(message.store_host, message.physical_offset) for message in found}) == len(found) == 200

    ask(tmp_path, question, store={"max_msgs_num_batch": 7})


def test_strangers_with_the_same_hash_are_left_out(tmp_path: Path) -> None:
    """`Aa` and `BB` have one hash; a page full of strangers does not hide the message that was asked for."""
    times = [("BB", NOW_MS)] + [("Aa", NOW_MS + 1000 * number) for number in range(1, 2 * PAGE)]
    fill(tmp_path, [(key, f"U{number}", time_ms) for number, (key, time_ms) in enumerate(times)])

    async def question(admin: AdminClient, brokers: list[Broker], running: Cluster) -> None:
        result = await admin.query_message_by_key("Orders", "BB")
        assert [message.unique_key for message in result.messages] == ["U0"]
        assert not result.is_cut

    ask(tmp_path, question)


@pytest.mark.parametrize("page", [PAGE, 7])
def test_a_page_of_strangers(tmp_path: Path, page: int) -> None:
    times = [("BB", NOW_MS)] + [("Aa", NOW_MS) for _ in range(2 * PAGE)]
    fill(tmp_path, [(key, f"U{number}", time_ms) for number, (key, time_ms) in enumerate(times)])

    async def question(admin: AdminClient, brokers: list[Broker], running: Cluster) -> None:
        result = await admin.query_message_by_key(TOPIC, "BB")
        assert ([message.unique_key for message in result.messages], result.is_cut) == (["U0"], False)

    ask(tmp_path, question, store={"max_msgs_num_batch": page})


def test_what_is_searchable(tmp_path: Path) -> None:
    fill(tmp_path, numbered(3, 1000), "broker-a")
    fill(tmp_path, [], "broker-b")

    async def question(admin: AdminClient, brokers: list[Broker], running: Cluster) -> None:
        result = await admin.query_message_by_key(TOPIC, "nobody")
        assert (result.messages, result.is_cut, result.failures) == ([], False, {})
        assert result.searchable == {brokers[0].address: (NOW_MS, NOW_MS + 2000), brokers[1].address: (0, 0)}

    ask(tmp_path, question)


def test_an_index_that_is_gone(tmp_path: Path) -> None:
    """The broker makes it anew when it starts."""
    fill(tmp_path, numbered(3, 1000))
    shutil.rmtree(tmp_path / "broker-a" / "index")

    async def question(admin: AdminClient, brokers: list[Broker], running: Cluster) -> None:
        result = await admin.query_message_by_key(TOPIC, "k")
        assert len(result.messages) == 3
        assert result.searchable == {brokers[0].address: (NOW_MS, NOW_MS + 2000)}

    ask(tmp_path, question)


def test_no_index_at_all(tmp_path: Path) -> None:
    fill(tmp_path, numbered(3, 1000), "broker-a")
    fill(tmp_path, numbered(3, 1000), "broker-b")

    async def question(admin: AdminClient, brokers: list[Broker], running: Cluster) -> None:
        with pytest.raises(ConfigError, match=f"{brokers[0].address} keeps no index"):
            await admin.query_message_by_key(TOPIC, "k")

    ask(tmp_path, question, store={"message_index_enable": False})


# A broker of Apache's, which knows whole seconds only: our own store, asked as one would ask Apache's.


def ask_apache(path: Path, times_ms: list[int], keys: str = "BB") -> tuple[KeyQueryResult, str, Result]:
    """What a query for BB finds at a broker, the broker's address, and what `queryMsgByKey` says of it."""
    store_config = StoreConfig(store_path_root_dir=path, **SMALL_FILES)
    fill(path.parent, [(keys, f"U{number}", time_ms) for number, time_ms in enumerate(times_ms)], path.name)

    async def asking() -> tuple[KeyQueryResult, str, Result]:
        with MessageStore(store_config) as store:
            adapter = QueryAdapter(QueryService(BrokerConfig(bind_address="127.0.0.1"), store))
            answering = processor_table(adapter.endpoints(), [])[RequestCode.QUERY_MESSAGE]

            def query_message(connection: Connection, command: RemotingCommand) -> Reply:
                del command.ext_fields["_BEFORE_PHYSICAL_OFFSET"]
                return answering(connection, command)

            async with cluster(path) as running:
                processors = {RequestCode.QUERY_MESSAGE: query_message}
                broker = await running.scripted_broker("broker-a", TOPIC, processors)  # type: ignore[arg-type]
                async with AdminClient(running.namesrv) as admin:
                    found = await admin.query_message_by_key(TOPIC, "BB", max_count=1000)
                    assert found.searchable == {}, "it does not tell"
                command = ["admin", "queryMsgByKey", "-n", running.namesrv, "-t", TOPIC, "-k", "BB", "-m", "1000"]
                return found, f"127.0.0.1:{broker.port}", await asyncio.to_thread(CliRunner().invoke, main, command)

    return asyncio.run(asking())


def test_apaches_pages_follow_each_other_by_time(tmp_path: Path) -> None:
    times_ms = [NOW_MS + 100 * number for number in range(3 * PAGE + 5)]
    found, _, said = ask_apache(tmp_path / "a", times_ms)
    assert [message.queue_offset for message in found.messages] == list(reversed(range(len(times_ms))))
    assert (found.is_cut, found.crowded) == (False, {})
    assert (said.exit_code, said.stderr) == (0, "")


def test_a_second_with_more_than_a_page_of_apaches_is_told(tmp_path: Path) -> None:
    """What is older is found, but the answer is cut, and says which second, and what would help."""
    times_ms = [NOW_MS, *(PAGE + 10) * [NOW_MS + 5000], NOW_MS + 9000]
    found, address, said = ask_apache(tmp_path / "a", times_ms)
    offsets = [message.queue_offset for message in found.messages]
    assert (found.is_cut, found.crowded) == (True, {address: [(NOW_MS + 5000) // 1000 * 1000]})
    assert (offsets[0], offsets[-1]) == (len(times_ms) - 1, 0)
    assert len(offsets) >= PAGE
    (line,) = said.stderr.splitlines()
    assert line.startswith(f"there are at least {len(offsets)}: {address} gives no more")
    assert f"-b {address} -k maxMsgsNumBatch" in line
    assert said.exit_code == 0


def test_a_second_crowded_with_strangers_is_told_where_nothing_is_found(tmp_path: Path) -> None:
    """All that the index gives are messages with another key of the same hash."""
    found, address, said = ask_apache(tmp_path / "a", (PAGE + 10) * [NOW_MS], keys="Aa")
    assert (found.messages, found.is_cut, list(found.crowded)) == ([], True, [address])
    assert said.exit_code == 0
    assert "there are at least 0" in said.stderr
