"""Groups with members: connections, running info, resets, direct consumption and tracks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from rucola import slices
from rucola.admin import LATEST, AdminClient, TrackType
from rucola.broker.broker import Broker
from rucola.cli.main import main
from rucola.client import (
    ClientInstance,
    ConsumeFromWhere,
    MessageExt,
    MessageModel,
    Producer,
    PullConsumer,
    PushConsumer,
    ReconsumeLater,
)
from rucola.domain.client import ConsumerConnection
from rucola.domain.queue import MessageQueue
from rucola.domain.statistics import ConsumeStats, OffsetWrapper
from rucola.errors import BrokerError, ConfigError
from rucola.message import Message
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.group import (
    QueryCorrectionOffsetBody,
    QueryCorrectionOffsetRequestHeader,
    ResetOffsetRequestHeader,
    decode_offset_table,
    reset_table_steps,
)
from rucola.protocol.offset import OffsetResponseHeader
from rucola.protocol.topic import consume_stats_steps
from rucola.remoting.connection import Connection, Processor, Reply
from support.cluster import Cluster, Tally, cluster
from support.errors import raises

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


class Scene:
    """A broker with the messages 0 to 9 of topic T in 2 queues, and a listening member of group c."""

    def __init__(self, admin: AdminClient, broker: Broker, running: Cluster, consumer: PushConsumer) -> None:
        self.admin = admin
        self.broker = broker
        self.running = running
        self.consumer = consumer
        self.client_id = consumer.instance.client_id
        self.consumed: Tally[MessageExt] = Tally()

    async def consume(self, message: MessageExt) -> None:
        if message.body == b"bad":
            raise ValueError("bad message")
        if message.body == b"later":
            raise ReconsumeLater(3)
        self.consumed.add(message)


@asynccontextmanager
async def cluster_with_consumer(path: Path, expression: str = "*") -> AsyncIterator[Scene]:
    async with cluster(path) as running:
        broker = await running.start_broker()
        await running.create_topic(broker, "T", 2)
        async with Producer("p", running.namesrv) as producer:
            for number in range(10):
                await producer.send(Message("T", b"%d" % number, tags="even" if number % 2 == 0 else "odd"))
            consumer = PushConsumer("c", running.namesrv, consume_from=FIRST)
            consumer.subscribe("T", expression)
            async with AdminClient(running.namesrv) as admin:
                scene = Scene(admin, broker, running, consumer)
                consumer.listen(scene.consume)
                async with consumer:
                    yield scene


async def test_connections_of_producers_and_consumers_are_listed(tmp_path: Path) -> None:
    async with cluster_with_consumer(tmp_path, "even") as scene:
        connection = await scene.admin.groups.consumer_connection("c")
        assert [(one.client_id, one.language) for one in connection.connection_set] == [(scene.client_id, "PYTHON")]
        assert connection.subscription_table["T"].tags_set == ["even"]
        assert (connection.consume_type, connection.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
        assert await scene.admin.groups.consumer_connection("c", scene.broker.address) == connection
        with pytest.raises(BrokerError) as refused:
            await scene.admin.groups.consumer_connection("nobody")
        assert refused.value.code == ResponseCode.CONSUMER_NOT_ONLINE

        async with Producer("q", scene.running.namesrv) as producer:
            await producer.send(Message("T", b"x"))
            await producer.instance.send_heartbeats()
            (one,) = (await scene.admin.groups.producer_connection("q", "T")).connection_set
            assert one.client_id == producer.instance.client_id
            assert (await scene.admin.groups.producers(scene.broker.address))["q"][0].remote_ip == one.client_addr


async def test_running_info_describes_a_consumer(tmp_path: Path) -> None:
    async with cluster_with_consumer(tmp_path) as scene:
        await scene.consumed.reach(10)
        info = await scene.admin.groups.running_info("c", scene.client_id)
        assert {(data.topic, data.sub_string) for data in info.subscription_set} == {("T", "*"), ("%RETRY%c", "*")}
        places = {queue.queue_id: held for queue, held in info.mq_table.items() if queue.topic == "T"}
        assert (
            sum(held.commit_offset for held in places.values()) + sum(held.cached_msg_count for held in places.values())
            >= 10
        )
        assert all(held.last_pull_timestamp > 0 for held in places.values())
        assert info.properties["consumerGroup"] == "c"
        assert set(info.status_table) == {"T", "%RETRY%c"}
        assert info.status_table["T"].consume_ok_tps > 0
        assert info.status_table["T"].pull_tps > 0

        status = await scene.admin.offsets.by_client("T", "c")
        assert sum(status[scene.client_id].values()) == 10
        assert await scene.admin.offsets.by_client("T", "c", scene.client_id) == status
        assert await scene.admin.offsets.by_client("T", "c", "another") == {}
        with raises(BrokerError, code=ResponseCode.SYSTEM_ERROR):
            await scene.admin.groups.running_info("c", "another")
        with raises(BrokerError, code=ResponseCode.SYSTEM_ERROR):
            await scene.admin.offsets.by_client("T", "nobody")


async def test_two_members_with_one_client_id_are_reported(tmp_path: Path) -> None:
    async with cluster_with_consumer(tmp_path) as scene:
        assert (await scene.admin.groups.consumer_connection("c")).shared_client_ids == {}
        twin = PushConsumer("c", instance=ClientInstance(scene.running.namesrv, client_id=scene.client_id))
        twin.subscribe("T")
        twin.listen(scene.consume)
        async with twin, twin.instance:
            connection = await scene.admin.groups.consumer_connection("c")
            addresses = [one.client_addr for one in connection.connection_set]
            assert connection.shared_client_ids == {scene.client_id: addresses}
            (finding,) = [one for one in await scene.admin.monitor.check_groups(0) if one.reason == "CLIENTS"]
            assert (finding.subject, finding.fields["clientId"]) == ("c", scene.client_id)
            command = ["admin", "consumerStatus", "-n", scene.running.namesrv, "-g", "c", "--json"]
            shown = await asyncio.to_thread(CliRunner().invoke, main, command)
            assert (shown.exit_code, json.loads(shown.stdout)["sharedClientIds"]) == (1, {scene.client_id: addresses})
            assert scene.client_id in shown.stderr


async def test_the_traffic_of_topics_is_the_sum_over_their_brokers(tmp_path: Path) -> None:
    """Two brokers share topic T, of which group g has consumed a part, and h, which has committed nothing, none."""
    async with cluster(tmp_path) as running, AdminClient(running.namesrv) as admin:
        brokers = [await running.start_broker(name) for name in ("broker-a", "broker-b")]
        topics = ["T", *(f"Unused{number}" for number in range(20))]
        for broker in brokers:
            for topic in topics:
                await running.create_topic(broker, topic, 1)
        consumer = PushConsumer("h", running.namesrv)
        consumer.subscribe("T")
        consumer.suspend()
        async with consumer, Producer("p", running.namesrv) as producer:
            for broker in brokers:
                for _ in range(5):
                    await producer.send(Message("T", b"x"), MessageQueue("T", broker.config.broker_name, 0))
            await admin.offsets.commit(brokers[0].address, "g", MessageQueue("T", "broker-a", 0), 2)
            first, *others = await admin.traffic.of_topics(topics)
        backlogs = {group.consumer_group: group.accumulation for group in first.groups}
        assert (first.topic, first.came.day_count, backlogs) == ("T", 10, {"g": 8, "h": 10})
        assert [one.topic for one in others] == topics[1:]
        assert not any(one.came.day_count or one.groups for one in others)


async def test_a_broadcasting_group_has_no_backlog(tmp_path: Path) -> None:
    """Its members keep their offsets themselves, so that the broker has none to compare."""
    async with cluster(tmp_path) as running, AdminClient(running.namesrv) as admin:
        await running.create_topic(await running.start_broker(), "T")
        member = PushConsumer(
            "b", running.namesrv, message_model=MessageModel.BROADCASTING, offsets_root=tmp_path / "offsets"
        )
        member.subscribe("T")
        async with member, Producer("p", running.namesrv) as producer:
            await producer.send_many(Message("T", b"x") for _ in range(8))
            ((group,),) = [one.groups for one in await admin.traffic.of_topics(["T"])]
            assert (group.consumer_group, group.accumulation) == ("b", 0)
            assert (await admin.groups.consume_stats("b", "T")).offset_table == {}


async def test_a_broadcasting_group_at_a_broker_of_rocketmq_4_has_no_backlog(tmp_path: Path) -> None:
    """Such a broker compares the ends of the queues with 0, and tells how the members consume."""

    def body_of(encoded: bytes) -> Processor:
        return lambda connection, command: command.response(ResponseCode.SUCCESS, body=encoded)

    stats = ConsumeStats(offset_table={MessageQueue("T", "broker-a", 0): OffsetWrapper(broker_offset=8)})
    async with cluster(tmp_path) as running, AdminClient(running.namesrv) as admin:
        processors: dict[int, Processor] = {
            RequestCode.GET_ALL_TOPIC_CONFIG: body_of(b'{"topicConfigTable":{"T":{"topicName":"T"}}}'),
            RequestCode.GET_ALL_CONSUMER_OFFSET: body_of(b'{"offsetTable":{"T@b":{"0":0}}}'),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: body_of(b"{}"),
            RequestCode.GET_CONSUME_STATS: body_of(slices.run(consume_stats_steps(stats))),
            RequestCode.VIEW_BROKER_STATS_DATA: lambda _, command: command.response(ResponseCode.SYSTEM_ERROR),
        }
        await running.scripted_broker("broker-a", "T", processors)
        for model, backlog in (("CLUSTERING", 8), ("BROADCASTING", 0)):
            members = ConsumerConnection(message_model=model)
            processors[RequestCode.GET_CONSUMER_CONNECTION_LIST] = body_of(encode_body(members))
            ((group,),) = [one.groups for one in await admin.traffic.of_topics(["T"])]
            assert (group.consumer_group, group.accumulation) == ("b", backlog)
            assert bool((await admin.groups.consume_stats("b")).offset_table) == bool(backlog)


async def test_a_reset_by_time_moves_running_clients(tmp_path: Path) -> None:
    async with cluster_with_consumer(tmp_path) as scene:
        first = list(await scene.consumed.reach(10))
        for queue in scene.consumer.queues:
            await scene.admin.offsets.commit(scene.broker.address, "c", queue, 5)
        result = await scene.admin.offsets.reset_by_time("T", "c", 0)
        assert result.online
        assert set(result.offsets.values()) == {0}
        again = (await scene.consumed.reach(20))[10:]
        assert sorted(message.body for message in again) == sorted(message.body for message in first)

        in_a_day = time.time_ns() // 1_000_000 + 86_400_000
        for end in (LATEST, in_a_day):
            result = await scene.admin.offsets.reset_by_time("T", "c", end)
            assert set(result.offsets.values()) == {5}
        # As mqadmin asks for a time to come.
        header = ResetOffsetRequestHeader(topic="T", group="c", timestamp=in_a_day, is_force="true")
        request = RemotingCommand.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        answer = await scene.running.remoting.invoke_ok(scene.broker.address, request)
        assert set(decode_offset_table(answer.body).values()) == {5}
        async with Producer("p", scene.running.namesrv) as producer:
            await producer.send(Message("T", b"next"))
        assert (await scene.consumed.reach(21))[-1].body == b"next"
        unmoved = await scene.admin.offsets.reset_by_time("T", "c", 0, force=False)
        assert set(unmoved.offsets.values()) == {0}, "an offset may decrease without force"
        with raises(BrokerError, code=ResponseCode.SYSTEM_ERROR):
            await scene.admin.offsets.reset_by_time("T", "stranger", 0)


async def test_a_reset_to_an_offset_moves_running_clients(tmp_path: Path) -> None:
    async with cluster_with_consumer(tmp_path) as scene:
        await scene.consumed.reach(10)
        queue, other = sorted(scene.consumer.queues)
        with raises(BrokerError, code=ResponseCode.SYSTEM_ERROR):
            await scene.admin.offsets.reset("stranger", queue, 0)
        for one in (queue, other):
            await scene.admin.offsets.commit(scene.broker.address, "c", one, 5)
        with raises(ConfigError, subject=str(queue)):
            await scene.admin.offsets.reset("c", queue, 6)
        result = await scene.admin.offsets.reset("c", queue, 3)
        assert (result.online, result.offsets) == (True, {queue: 3})
        again = (await scene.consumed.reach(12))[10:]
        assert [(message.queue_id, message.queue_offset) for message in again] == [
            (queue.queue_id, at) for at in (3, 4)
        ]

        await scene.consumer.close()
        result = await scene.admin.offsets.reset("c", other, 1)
        assert (result.online, result.offsets) == (False, {other: 1})
        places = (await scene.admin.groups.consume_stats("c", "T")).offset_table
        assert places[other].consumer_offset == 1


async def test_a_message_is_consumed_directly(tmp_path: Path) -> None:
    async with cluster_with_consumer(tmp_path) as scene:
        first = (await scene.consumed.reach(10))[0]
        result = await scene.admin.messages.consume_directly("c", scene.client_id, first.offset_msg_id)
        assert result.consume_result == "CR_SUCCESS"
        assert (await scene.consumed.reach(11))[-1].offset_msg_id == first.offset_msg_id
        async with Producer("p", scene.running.namesrv) as producer:
            bad = await producer.send(Message("T", b"bad"))
            later = await producer.send(Message("T", b"later"))
        result = await scene.admin.messages.consume_directly("c", scene.client_id, later.offset_msg_id)
        assert result.consume_result == "CR_LATER"
        result = await scene.admin.messages.consume_directly("c", scene.client_id, bad.offset_msg_id)
        assert result.consume_result == "CR_THROW_EXCEPTION"
        assert result.remark == "ValueError: bad message"
        with raises(BrokerError, code=ResponseCode.SYSTEM_ERROR):
            await scene.admin.messages.consume_directly("c", "another", first.offset_msg_id)
        with raises(BrokerError, code=ResponseCode.SYSTEM_ERROR):
            await scene.admin.messages.consume_directly("c", scene.client_id, first.offset_msg_id[:16] + "7" * 16)

        iterating = PushConsumer("i", scene.running.namesrv)
        iterating.subscribe("T")
        async with iterating:
            with raises(BrokerError, code=ResponseCode.SYSTEM_ERROR):
                await scene.admin.messages.consume_directly("i", iterating.instance.client_id, first.offset_msg_id)


async def test_message_track_names_each_groups_state(tmp_path: Path) -> None:
    async with cluster_with_consumer(tmp_path, "even") as scene:
        consumed = await scene.consumed.reach(5)
        assert {message.tags for message in consumed} == {"even"}
        async with asyncio.timeout(20):
            status = await scene.admin.offsets.by_client("T", "c")
            while sum(status[scene.client_id].values()) < 10:
                status = await scene.admin.offsets.by_client("T", "c")
        for queue, offset in status[scene.client_id].items():
            await scene.admin.offsets.commit(scene.broker.address, "c", queue, offset)
        async with PullConsumer("looking", scene.running.namesrv) as looking:
            messages = []
            for queue in await looking.queues("T"):
                await looking.commit(queue, 1)
                messages += (await looking.pull(queue, 0, 32)).messages
        for message in messages:
            tracks = {one.consumer_group: one.track_type for one in await scene.admin.messages.track(message)}
            wanted = TrackType.CONSUMED if message.tags == "even" else TrackType.CONSUMED_BUT_FILTERED
            assert tracks == {"c": wanted, "looking": TrackType.NOT_ONLINE}
        await scene.consumer.close()
        async with Producer("p", scene.running.namesrv) as producer:
            late = await producer.send(Message("T", b"late", tags="even"))
        message = await scene.admin.messages.get(late.offset_msg_id)
        tracks = {one.consumer_group: one.track_type for one in await scene.admin.messages.track(message)}
        assert tracks == {"c": TrackType.NOT_ONLINE, "looking": TrackType.NOT_ONLINE}


async def test_consume_time_spans_show_delay_by_queue(tmp_path: Path) -> None:
    async with cluster_with_consumer(tmp_path) as scene:
        await scene.consumed.reach(10)
        spans = await scene.admin.groups.consume_time_spans("T", "c")
        assert [span.message_queue.queue_id for span in spans] == [0, 1]
        assert all(0 < span.min_time_stamp <= span.max_time_stamp for span in spans)
        assert all(span.min_time_stamp_str.startswith("20") for span in spans)


async def test_minimum_committed_offset_covers_all_groups(tmp_path: Path) -> None:
    async with cluster_with_consumer(tmp_path) as scene:
        await scene.consumer.close()
        queue, other = await scene.admin.topics.queues("T")
        for group, offset in (("slow", 2), ("fast", 4), ("slower", 1)):
            await scene.admin.offsets.commit(scene.broker.address, group, queue, offset)
        await scene.admin.groups.delete(scene.broker.address, "c", remove_offset=True)

        async def corrections(filtered: str | None, compared: str) -> dict[int, int]:
            header = QueryCorrectionOffsetRequestHeader(topic="T", filter_groups=filtered, compare_group=compared)
            request = RemotingCommand.request(RequestCode.QUERY_CORRECTION_OFFSET, header)
            answer = await scene.running.remoting.invoke_ok(scene.broker.address, request)
            return decode_body(QueryCorrectionOffsetBody, answer.body).correction_offsets

        assert await corrections(None, "fast") == {queue.queue_id: 1}
        assert await corrections("slower,none", "fast") == {queue.queue_id: 2}
        assert await corrections("slower", "slower") == {queue.queue_id: 2**63 - 1}
        await scene.admin.offsets.commit(scene.broker.address, "new", other, 0)
        assert await corrections("slower", "new") == {queue.queue_id: 2, other.queue_id: 0}


async def test_a_reset_to_an_offset_fails_if_a_broker_of_rocketmq_4_has_members(tmp_path: Path) -> None:
    """It sees a reset to the end without force, changes nothing, and returns the unchanged offsets."""
    queue = MessageQueue("T", "broker-a", 0)

    def end(offset: int) -> Callable[[Connection, RemotingCommand], Reply]:
        return lambda connection, command: command.response(ResponseCode.SUCCESS, OffsetResponseHeader(offset=offset))

    def reset(connection: Connection, command: RemotingCommand) -> Reply:
        assert command.ext_fields["timestamp"] == "-1"
        assert command.ext_fields["isForce"] == "false"
        return command.response(ResponseCode.SUCCESS, body=slices.run(reset_table_steps({queue: 7})))

    async with cluster(tmp_path) as running, AdminClient(running.namesrv) as admin:
        processors: dict[int, Processor] = {
            RequestCode.GET_MIN_OFFSET: end(0),
            RequestCode.GET_MAX_OFFSET: end(9),
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset,
        }
        await running.scripted_broker("broker-a", "T", processors)
        with raises(ConfigError, subject="g"):
            await admin.offsets.reset("g", queue, 3)
