"""Dead letters: statistics, reading, and sending them again exactly once, also after interrupted runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from rucola.admin import (
    REDRIVE_GROUP,
    AdminClient,
    RedriveResult,
    RedriveStatus,
    dlq_topic,
    read_queue,
    redrive,
    retry_topic,
)
from rucola.broker.broker import Broker
from rucola.client import Producer, PullConsumer
from rucola.domain.queue import LockedQueues, MessageQueue
from rucola.errors import ConfigError, TopicNotFound
from rucola.message import Message, MessageExt
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.retry import ConsumerSendMsgBackRequestHeader
from support.cluster import Cluster, cluster
from support.errors import raises

COUNT = 6
SENT, BEFORE, FAILED = RedriveStatus.SENT, RedriveStatus.DONE_BEFORE, RedriveStatus.FAILED


class Scene:
    """A broker whose topic T has COUNT messages, all of them dead letters of group g."""

    def __init__(self, running: Cluster, broker: Broker, admin: AdminClient) -> None:
        self.running = running
        self.broker = broker
        self.admin = admin

    async def make_dead_letter(self, physical_offset: int) -> None:
        header = ConsumerSendMsgBackRequestHeader(offset=physical_offset, group="g", delay_level=-1)
        request = RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        await self.running.remoting.invoke_ok(self.broker.address, request)

    async def letters(self) -> list[MessageExt]:
        return [letter.message async for letter in self.admin.dead_letters.read("g")]

    async def redrive(self, *ids: str, **options: object) -> list[RedriveResult]:
        return await self.admin.dead_letters.redrive("g", ids, **options)  # type: ignore[arg-type]

    async def copies(self, topic: str = "T") -> Counter[bytes]:
        """The number of copies of each body in a topic."""
        bodies: Counter[bytes] = Counter()
        for number in range(COUNT):
            found = await self.admin.messages.query_by_key(topic, f"k{number}")
            bodies.update(message.body for message in found.messages if "REDRIVEN_FROM" in message.properties)
        return bodies

    async def reset_offset(self) -> None:
        queue = MessageQueue(dlq_topic("g"), "broker-a", 0)
        await self.admin.offsets.commit(self.broker.address, REDRIVE_GROUP, queue, 0)


@asynccontextmanager
async def cluster_with_dead_letters(path: Path) -> AsyncIterator[Scene]:
    async with cluster(path) as running:
        broker = await running.start_broker()
        await running.create_topic(broker, "T", 2)
        async with AdminClient(running.namesrv) as admin:
            scene = Scene(running, broker, admin)
            async with Producer("p", running.namesrv) as producer:
                for number in range(COUNT):
                    message = Message("T", b"%d" % number, tags="x", keys=f"k{number}", properties={"own": "yes"})
                    sent = await producer.send(message)
                    await scene.make_dead_letter(int(sent.offset_msg_id[16:], 16))
            yield scene


def statuses(results: list[RedriveResult]) -> list[RedriveStatus]:
    return [result.status for result in results]


async def test_dead_letters_are_counted_and_listed(tmp_path: Path) -> None:
    async with cluster_with_dead_letters(tmp_path) as scene:
        assert await scene.admin.dead_letters.groups() == ["g"]
        letters = [letter async for letter in scene.admin.dead_letters.read("g")]
        assert [letter.message.body for letter in letters] == [b"%d" % number for number in range(COUNT)]
        assert {(letter.origin_topic, letter.is_redriven) for letter in letters} == {("T", False)}
        stats = await scene.admin.dead_letters.stats("g")
        times = [letter.message.store_timestamp for letter in letters]
        assert (stats.count, stats.waiting, stats.oldest_ms, stats.newest_ms) == (COUNT, COUNT, times[0], times[-1])
        with raises(TopicNotFound, subject="nobody"):
            await scene.admin.dead_letters.stats("nobody")
        with raises(TopicNotFound, subject="nobody"):
            await anext(scene.admin.dead_letters.read("nobody"))


async def test_redrive_sends_the_original_message(tmp_path: Path) -> None:
    async with cluster_with_dead_letters(tmp_path) as scene:
        first, *_ = await scene.letters()
        with pytest.warns(RuntimeWarning):
            scene.admin.dead_letters.redrive("g")  # not awaited: the dry run below shows that it did nothing
        dry = await scene.redrive(dry_run=True)
        assert statuses(dry) == COUNT * [RedriveStatus.WOULD_SEND]
        assert await scene.copies() == {}
        results = await scene.redrive()
        assert [(result.status, result.topic) for result in results] == COUNT * [(SENT, "T")]
        sent, copy = (await scene.admin.messages.query_by_unique_key("T", first.msg_id)).messages
        own = {name: copy.properties[name] for name in ("own", "TAGS", "KEYS", "UNIQ_KEY")}
        assert own == {name: sent.properties[name] for name in own}
        assert (copy.body, copy.reconsume_times) == (sent.body, 0)
        assert copy.properties["REDRIVEN_FROM"] == first.offset_msg_id
        assert copy.properties["ORIGIN_MESSAGE_ID"] == sent.offset_msg_id
        assert not {"RETRY_TOPIC", "DELAY"} & copy.properties.keys()
        stats = await scene.admin.dead_letters.stats("g")
        assert (stats.count, stats.waiting) == (COUNT, 0), "dead letters stay, and none waits"


async def test_a_second_redrive_sends_nothing(tmp_path: Path) -> None:
    """By its offset, and where that is lost, by the copies."""

    async with cluster_with_dead_letters(tmp_path) as scene:
        await scene.redrive()
        assert await scene.redrive() == []
        await scene.reset_offset()
        assert statuses(await scene.redrive()) == COUNT * [BEFORE]
        assert set((await scene.copies()).values()) == {1}
        assert all([letter.is_redriven async for letter in scene.admin.dead_letters.read("g")])


@pytest.mark.parametrize("loses_offset", [False, True])
async def test_an_interrupted_redrive_continues_where_it_stopped(
    tmp_path: Path, loses_offset: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within its second batch of two, both of whose copies are stored."""
    monkeypatch.setattr(redrive, "BATCH_COUNT", 2)
    async with cluster_with_dead_letters(tmp_path) as scene:
        async with aclosing(scene.admin.dead_letters.redrive("g")) as results:
            for _ in range(3):
                assert (await anext(results)).status is SENT
        assert (await scene.admin.dead_letters.stats("g")).waiting == COUNT - 3
        listed = [letter.is_redriven async for letter in scene.admin.dead_letters.read("g")]
        assert listed == 4 * [True] + 2 * [False]
        if loses_offset:  # as after a crash between the last copy and the commit
            await scene.reset_offset()
        assert statuses(await scene.redrive())[-3:] == [BEFORE, SENT, SENT]
        assert await scene.copies() == dict.fromkeys([b"%d" % number for number in range(COUNT)], 1)


async def test_copies_go_only_to_brokers_that_have_noted_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A send without a response may have been stored: the note, which the broker stored before, makes a run look."""
    monkeypatch.setattr(redrive, "BATCH_COUNT", 1)
    async with cluster_with_dead_letters(tmp_path) as scene:
        second = await scene.running.start_broker("broker-b")
        for broker in (scene.broker, second):
            await scene.running.create_topic(broker, "T", 1)
        assert statuses(await scene.redrive()) == COUNT * [SENT]
        copies = [(await scene.admin.messages.query_by_key("T", f"k{n}")).messages[0] for n in range(COUNT)]
        assert {copy.store_host for copy in copies} == {scene.broker.address, second.address}, "they take turns"
        async with PullConsumer("reader", scene.running.namesrv) as consumer:
            for broker in (scene.broker, second):
                queue = MessageQueue(REDRIVE_GROUP, broker.config.broker_name, 0)
                notes = [decode_body(redrive.LedgerNote, one.body) async for one in read_queue(consumer, queue)]
                noted = {offset for note in notes for offset in range(note.begin, note.end)}
                of_broker = {n for n, copy in enumerate(copies) if copy.store_host == broker.address}
                assert {note.group for note in notes} == {"g"}
                assert noted == of_broker
        await scene.reset_offset()
        assert statuses(await scene.redrive()) == COUNT * [BEFORE]


async def test_redrive_sends_chosen_dead_letters_alone(tmp_path: Path) -> None:
    async with cluster_with_dead_letters(tmp_path) as scene:
        letters = await scene.letters()
        chosen = letters[3].offset_msg_id, letters[1].offset_msg_id
        assert statuses(await scene.redrive(*chosen)) == [SENT, SENT]
        assert statuses(await scene.redrive(*chosen)) == [BEFORE, BEFORE]
        assert (await scene.admin.dead_letters.stats("g")).waiting == COUNT, "the first one was not re-driven"
        redriven = [letter.is_redriven async for letter in scene.admin.dead_letters.read("g")]
        assert redriven == [False, True, False, True, False, False]
        assert statuses(await scene.redrive()) == [SENT, BEFORE, SENT, BEFORE, SENT, SENT]
        assert set((await scene.copies()).values()) == {1}
        first = (await scene.admin.messages.query_by_key("T", "k0")).messages[-1]
        with raises(ConfigError, subject=first.offset_msg_id):
            await scene.redrive(first.offset_msg_id)


async def test_redrive_sends_the_dead_letters_of_a_time_range(tmp_path: Path) -> None:
    async with cluster_with_dead_letters(tmp_path) as scene:
        letters = await scene.letters()
        begin_ms, end_ms = letters[2].store_timestamp, letters[4].store_timestamp
        expected = [letter for letter in letters if begin_ms <= letter.store_timestamp <= end_ms]
        results = await scene.redrive(begin_ms=begin_ms, end_ms=end_ms)
        assert [result.message for result in results] == expected
        await scene.redrive()
        assert await scene.copies() == dict.fromkeys([b"%d" % number for number in range(COUNT)], 1)


async def test_redrive_to_the_retry_topic_reaches_the_group_alone(tmp_path: Path) -> None:
    async with cluster_with_dead_letters(tmp_path) as scene:
        await scene.running.create_topic(scene.broker, retry_topic("g"), 1)
        results = await scene.redrive(only_group=True)
        assert {(result.status, result.topic) for result in results} == {(SENT, "%RETRY%g")}
        assert await scene.copies() == {}
        assert await scene.copies("%RETRY%g") == dict.fromkeys([b"%d" % number for number in range(COUNT)], 1)
        assert len({result.sent and result.sent.queue_offset for result in results} - {None}) == COUNT
        copies = await scene.admin.messages.query_by_key("%RETRY%g", "k0")
        assert [copy.properties["RETRY_TOPIC"] for copy in copies.messages] == ["T"], "consumers restore it"
        await scene.reset_offset()
        assert set(statuses(await scene.redrive())) == {BEFORE}, "no second copy goes to the topic"


async def test_a_dead_letter_that_cannot_be_sent_stays(tmp_path: Path) -> None:
    """The topic may not be written to for a while; then it is gone for a while."""

    async with cluster_with_dead_letters(tmp_path) as scene:
        await scene.running.create_topic(scene.broker, "T", 2, perm=4)
        failed = await scene.redrive()
        assert statuses(failed) == COUNT * [FAILED]
        assert all("T" in result.reason for result in failed)
        await scene.admin.topics.delete_on_broker(scene.broker.address, "T")
        await scene.admin.topics.delete_on_name_servers("T")
        gone = await scene.redrive()
        assert statuses(gone) == COUNT * [FAILED]
        assert all("no name server knows a route for topic T" in result.reason for result in gone)
        assert (await scene.admin.dead_letters.stats("g")).waiting == COUNT
        await scene.running.create_topic(scene.broker, "T", 2)
        assert statuses(await scene.redrive()) == COUNT * [SENT]


async def test_a_dead_letter_without_an_original_topic_stays_and_blocks_no_other(tmp_path: Path) -> None:
    async with cluster_with_dead_letters(tmp_path) as scene:
        async with Producer("p", scene.running.namesrv) as producer:
            await producer.send(Message(dlq_topic("g"), b"sent by hand"))
        *others, last = await scene.redrive()
        assert statuses(others) == COUNT * [SENT]
        assert (last.status, last.topic) == (FAILED, "")
        assert "RETRY_TOPIC" in last.reason
        assert statuses(await scene.redrive()) == [FAILED]


async def test_a_redriven_message_that_fails_again_can_be_redriven(tmp_path: Path) -> None:
    async with cluster_with_dead_letters(tmp_path) as scene:
        await scene.redrive()
        copy = (await scene.admin.messages.query_by_key("T", "k0")).messages[0]
        await scene.make_dead_letter(copy.physical_offset)
        (result,) = await scene.redrive()
        assert (result.status, result.message.body) == (SENT, b"0")
        assert (await scene.copies())[b"0"] == 2
        assert await scene.redrive() == []


async def test_forgetting_redriven_offsets_sends_nothing_twice(tmp_path: Path) -> None:
    """Before its dead letter topic is deleted, since a new one would count from 0 again."""

    async with cluster_with_dead_letters(tmp_path) as scene:
        await scene.redrive()
        await scene.admin.dead_letters.reset_redrive_offset("g")
        assert (await scene.admin.dead_letters.stats("g")).waiting == COUNT
        assert statuses(await scene.redrive()) == COUNT * [BEFORE], "the copies prove it"
        await scene.admin.dead_letters.reset_redrive_offset("nobody")


async def test_two_redrives_of_a_group_exclude_each_other(tmp_path: Path) -> None:
    async with cluster_with_dead_letters(tmp_path) as scene:
        async with aclosing(scene.admin.dead_letters.redrive("g")) as results:
            await anext(results)
            with pytest.raises(ConfigError):
                await scene.redrive()
            assert len(await scene.redrive(dry_run=True)) == COUNT
        assert set(statuses(await scene.redrive())) == {BEFORE}, "the first run had sent them together"
        assert set((await scene.copies()).values()) == {1}


async def test_redrive_respects_the_lock_of_another_tool(tmp_path: Path) -> None:
    async with cluster_with_dead_letters(tmp_path) as scene:
        queue = MessageQueue(dlq_topic("g"), "broker-a", 0)
        body = LockedQueues(client_id="another", consumer_group=REDRIVE_GROUP, mq_set=[queue])
        lock = RemotingCommand.request(RequestCode.LOCK_BATCH_MQ, body=encode_body(body))
        await scene.running.remoting.invoke_ok(scene.broker.address, lock)
        letter, *_ = await scene.letters()
        with pytest.raises(ConfigError):
            await scene.redrive(letter.offset_msg_id)
        unlock = RemotingCommand.request(RequestCode.UNLOCK_BATCH_MQ, body=encode_body(body))
        await scene.running.remoting.invoke_ok(scene.broker.address, unlock)
        assert statuses(await scene.redrive(letter.offset_msg_id)) == [SENT]


async def test_redrive_limits_its_rate(tmp_path: Path) -> None:
    """Six messages have five pauses of 40 ms between them; a slow machine takes longer."""

    async with cluster_with_dead_letters(tmp_path) as scene:
        begin = asyncio.get_running_loop().time()
        assert statuses(await scene.redrive(per_second=25)) == COUNT * [SENT]
        assert asyncio.get_running_loop().time() - begin >= 5 / 25
