"""Message tracks: passed, waiting for a retry, consumed after a retry, dead letter."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from rucola.admin import AdminClient, MessageExt, MessageQueue, MessageTrack, TrackType, dlq_topic, retry_topic
from rucola.broker.broker import Broker
from rucola.cli.main import main
from rucola.client import Message, Producer, PullConsumer, SimpleConsumer
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.retry import ConsumerSendMsgBackRequestHeader
from support.cluster import Cluster, cluster

DELAYS = {"message_delay_level": "1s 1h"}


class Scene:
    """A message in topic T, and group g without members, whose offset is beyond it."""

    def __init__(self, running: Cluster, broker: Broker, admin: AdminClient, message: MessageExt) -> None:
        self.running = running
        self.broker = broker
        self.admin = admin
        self.message = message

    async def commit(self, topic: str, offset: int) -> None:
        queue = MessageQueue(topic, "broker-a", 0)
        await self.admin.offsets.commit(self.broker.address, "g", queue, offset)

    async def requeue(self, message: MessageExt, delay_level: int) -> None:
        header = ConsumerSendMsgBackRequestHeader(offset=message.physical_offset, group="g", delay_level=delay_level)
        request = RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        await self.running.remoting.invoke_ok(self.broker.address, request)

    async def copy_in(self, topic: str) -> MessageExt:
        """Wait for the copy of the message in a topic."""
        async with PullConsumer("looking", self.running.namesrv) as consumer:
            pulled = await consumer.pull(MessageQueue(topic, "broker-a", 0), 0, suspend_ms=30_000)
        return pulled.messages[0]

    async def track(self) -> MessageTrack:
        (track,) = await self.admin.messages.track(self.message)
        return track


@asynccontextmanager
async def cluster_with_message(path: Path) -> AsyncIterator[Scene]:
    async with cluster(path) as running:
        broker = await running.start_broker(store=DELAYS)
        await running.create_topic(broker, "T", 1)
        async with AdminClient(running.namesrv) as admin, Producer("p", running.namesrv) as producer:
            sent = await producer.send(Message("T", b"x", keys="k"))
            message = await admin.messages.get(sent.offset_msg_id)
            scene = Scene(running, broker, admin, message)
            await scene.commit("T", 1)
            yield scene


async def test_an_offline_group_is_tracked_by_its_offset(tmp_path: Path) -> None:
    async with cluster_with_message(tmp_path) as scene:
        track = await scene.track()
        assert (track.track_type, track.is_passed, track.retry_count) == (TrackType.NOT_ONLINE, True, 0)
        assert track.consumed_until_ms == scene.message.store_timestamp
        await scene.commit("T", 0)
        assert (await scene.track()).is_passed is False


async def test_a_message_that_waits_for_its_retry_is_tracked(tmp_path: Path) -> None:
    async with cluster_with_message(tmp_path) as scene:
        await scene.requeue(scene.message, 2)
        track = await scene.track()
        assert (track.track_type, track.retry_count, track.dead_ms) == (TrackType.IN_RETRY, 1, 0)
        assert track.last_failed_ms >= scene.message.store_timestamp


@pytest.mark.slow
async def test_a_message_is_tracked_through_two_retries(tmp_path: Path) -> None:
    async with cluster_with_message(tmp_path) as scene:
        await scene.requeue(scene.message, 1)
        copy = await scene.copy_in(retry_topic("g"))
        first = await scene.track()
        assert (first.track_type, first.retry_count) == (TrackType.IN_RETRY, 1), "it is there, and not consumed yet"
        await scene.commit(retry_topic("g"), 1)
        done = await scene.track()
        assert (done.track_type, done.retry_count, done.last_failed_ms) == (
            TrackType.NOT_ONLINE,
            1,
            first.last_failed_ms,
        )
        await scene.requeue(copy, 2)
        again = await scene.track()
        assert (again.track_type, again.retry_count) == (TrackType.IN_RETRY, 2)
        assert again.last_failed_ms >= first.last_failed_ms


async def test_a_dead_letter_is_tracked_after_its_redrive(tmp_path: Path) -> None:
    async with cluster_with_message(tmp_path) as scene:
        await scene.requeue(scene.message, -1)
        track = await scene.track()
        letter = await scene.copy_in(dlq_topic("g"))
        assert (track.track_type, track.dead_ms) == (TrackType.IN_DLQ, letter.store_timestamp)
        async for result in scene.admin.dead_letters.redrive("g"):
            assert result.topic == "T"
        scene.message = (await scene.admin.messages.query_by_key("T", "k")).messages[0]
        copy = await scene.track()
        assert (copy.track_type, copy.is_passed, copy.dead_ms) == (TrackType.NOT_ONLINE, False, 0)
        await scene.commit("T", 2)
        await scene.requeue(scene.message, -1)
        assert (await scene.track()).track_type is TrackType.IN_DLQ


async def test_a_message_received_by_pop_is_tracked_until_its_acknowledgement(tmp_path: Path) -> None:
    async with cluster_with_message(tmp_path) as scene, SimpleConsumer("g", scene.running.namesrv) as consumer:
        await scene.commit("T", 0)
        async with Producer("p", scene.running.namesrv) as producer:
            later = await scene.admin.messages.get((await producer.send(Message("T", b"y"))).offset_msg_id)
        (held,) = await consumer.receive("T", 1)
        track = await scene.track()
        assert (track.track_type, track.is_passed) == (TrackType.IN_FLIGHT, False)
        (other,) = await scene.admin.messages.track(later)
        assert other.track_type is TrackType.NOT_CONSUME_YET
        await consumer.ack(await consumer.receive("T"))
        (other,) = await scene.admin.messages.track(later)
        assert (other.track_type, other.is_passed) == (TrackType.CONSUMED, False)
        assert await progress(scene.running.namesrv) == [("T", 0, 1, 2, True)]
        await consumer.change_invisible(held, 0)
        (again,) = await consumer.receive("T")
        track = await scene.track()
        assert (track.track_type, track.retry_count, track.is_passed) == (TrackType.IN_FLIGHT, 1, True)
        await consumer.change_invisible(again, 1000)
        assert (await scene.track()).retry_count == 1
        await consumer.ack(again)
        track = await scene.track()
        assert (track.track_type, track.retry_count) == (TrackType.CONSUMED, 1)
        assert {row[:4] for row in await progress(scene.running.namesrv)} == {("T", 0, 0, 0), ("%RETRY%g_T", 0, 0, 0)}


async def progress(namesrv: str) -> list[tuple[str, int, int, int, bool]]:
    """What consumerProgress shows of group g: topic, ready, in flight, backlog, whether the oldest is known."""
    done = await asyncio.to_thread(
        lambda: CliRunner().invoke(main, ["admin", "consumerProgress", "-n", namesrv, "-g", "g", "--json"])
    )
    rows = json.loads(done.stdout)["queues"]
    return [(row["topic"], row["ready"], row["inFlight"], row["diff"], row["oldestMs"] > 0) for row in rows]


async def test_tracking_without_an_index_reports_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        broker = await running.start_broker(store={"message_index_enable": False})
        await running.create_topic(broker, "T", 1)
        async with AdminClient(running.namesrv) as admin, Producer("p", running.namesrv) as producer:
            sent = await producer.send(Message("T", b"x", keys="k"))
            await admin.offsets.commit(broker.address, "g", MessageQueue("T", "broker-a", 0), 1)
            (track,) = await admin.messages.track(await admin.messages.get(sent.offset_msg_id))
            assert (track.track_type, track.is_passed) == (TrackType.NOT_ONLINE, True)
            assert "keeps no index" in track.error
