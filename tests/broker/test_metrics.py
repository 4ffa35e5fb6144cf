"""The metrics of a broker, as Prometheus gets them and reads them."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rucola import __version__, slices
from rucola.admin import AdminClient
from rucola.broker.broker import Broker, wall_clock_ms
from rucola.broker.election_metrics import ElectionCollector
from rucola.broker.role import SwitchReason
from rucola.client import ConsumeFromWhere, Message, MessageQueue, Producer, PullConsumer, PushConsumer
from rucola.coordination.coordinator import CoordinationFigures
from rucola.coordination.election import Role
from rucola.domain.group import SubscriptionGroupConfig
from rucola.errors import RemotingError, StoreLocked
from rucola.protocol import pull
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.replication import encode_report
from rucola.remoting.byte_stream import open_stream
from rucola.remoting.client import RemotingClient
from rucola.remoting.metrics_config import MetricsExporterType
from rucola.version import COMMIT
from support.cluster import HOST, Cluster, cluster
from support.metrics import (
    BROKER_LABELS,
    Samples,
    documented_names,
    families_of,
    http_request,
    names_of,
    sample_value,
    scrape,
)  # fmt: skip
from support.peer import pull_header
from support.pop import ack, receive
from support.ports import free_port
from support.replication import end_of, follows, pair, send
from support.waiting import until


@asynccontextmanager
async def metered_broker(path: Path) -> AsyncIterator[tuple[Cluster, Broker]]:
    async with cluster(path) as running:
        broker = await running.start_broker(
            metrics_exporter_type=MetricsExporterType.PROM, metrics_prom_exporter_port=free_port()
        )
        await running.create_topic(broker, "T", 2)
        yield running, broker


async def test_topic_and_group_metrics_are_exported(tmp_path: Path) -> None:
    async with metered_broker(tmp_path) as (running, broker):
        async with Producer("p", running.namesrv) as producer, PullConsumer("g", running.namesrv) as consumer:
            queue, _ = await consumer.queues("T")
            for _ in range(5):
                await producer.send(Message("T", b"x"), queue)
            await consumer.pull(queue, 0)
            await consumer.commit(queue, 2)
        samples = await scrape(broker)
        of_topic = BROKER_LABELS | {"topic": "T"}
        of_group = of_topic | {"group": "g"}
        assert sample_value(samples, "rocketmq_producer_offset", **of_topic) == 5
        assert sample_value(samples, "rocketmq_producer_tps", **of_topic) > 0
        assert sample_value(samples, "rocketmq_producer_message_size", **of_topic) > 0
        assert sample_value(samples, "rocketmq_broker_tps", **BROKER_LABELS, brokerIP=broker.address) > 0
        assert sample_value(samples, "rocketmq_consumer_offset", **of_group) == 2
        assert sample_value(samples, "rocketmq_consumer_tps", **of_group) > 0
        assert sample_value(samples, "rocketmq_group_get_latency_by_storetime", **of_group) >= 0
        assert sample_value(samples, "rocketmq_group_diff", group="g", topic="T", msgModel="") == 3
        runtime = {name: values for name, values in samples.items() if name.startswith("rocketmq_brokeruntime_")}
        assert len(runtime) == 33
        ((labels, count),) = runtime["rocketmq_brokeruntime_putmessage_times_total"]
        assert (labels["brokerIP"], labels["brokerHost"], labels["des"]) == (broker.address, "broker-a", "V4_9_8")
        assert count == 5
        ((_, free),) = runtime["rocketmq_brokeruntime_commitlogdir_capacity_free"]
        ((_, total),) = runtime["rocketmq_brokeruntime_commitlogdir_capacity_total"]
        assert 0 < free <= total
        ((labels, used),) = samples["rocketmq_consumequeue_mappings_ratio"]
        assert (labels, 0 < used < 1) == (BROKER_LABELS | {"limit": labels["limit"]}, True)
        assert labels["limit"] in {"LimitNOFILE", "vm.max_map_count"}


async def test_the_page_documents_exactly_the_exported_metrics(tmp_path: Path) -> None:
    async with metered_broker(tmp_path) as (_, broker):
        told = names_of(await families_of(broker.config.metrics_prom_exporter_port))
        with_tls = {"rocketmq_certificate_expiry_timestamp_seconds"}
        assert told == documented_names("Metrics") - election_metrics() - with_tls


def election_metrics() -> set[str]:
    figures = CoordinationFigures(
        Role.MASTER, 7, frozenset({1, 2}), frozenset({1, 2}), False, 3, 8.5, False, frozenset({1})
    )
    return names_of(ElectionCollector("c", "broker-a", lambda: figures).collect())


async def test_replication_lag_is_exported(tmp_path: Path) -> None:
    name = "rocketmq_slave_behind_bytes"
    settings = {"metrics_exporter_type": MetricsExporterType.PROM, "metrics_prom_exporter_port": 0}

    async with cluster(tmp_path) as running:
        master = await running.start_broker(**settings)
        await running.create_topic(master, "T")
        await send(running, 5)

        async def is_told(expected: float) -> bool:
            return [value for _, value in (await scrape(master)).get(name, [])] == [expected]

        async def is_older(seconds: float) -> bool:
            ((_, now),) = (await scrape(master))["rocketmq_slave_behind_seconds"]
            return now > seconds

        lazy = await open_stream(f"{HOST}:{master.config.ha_listen_port}")
        assert name not in await scrape(master), "it has not said yet where to begin"
        end = await end_of(running, master)
        middle = end // 2 + 1
        await lazy.write(encode_report(middle))
        await until(lambda: is_told(end - middle))
        ((labels, _),) = (await scrape(master))[name]
        assert labels.pop("slave").startswith(f"{HOST}:")
        assert labels == BROKER_LABELS
        ((_, seconds),) = (await scrape(master))["rocketmq_slave_behind_seconds"]
        await until(lambda: is_older(seconds))
        await lazy.write(encode_report(end - 3))
        await until(lambda: is_told(3))
        assert "rocketmq_slave_behind_seconds" not in await scrape(master), "no whole message tells an age"
        await lazy.write(encode_report(end))
        await until(lambda: is_told(0))
        lazy.close()
        port: int | None = None
        for _ in range(2):  # the label, which alerts name, stays over reconnections
            slave = await running.start_slave(**settings, port=port)
            await until(lambda: is_told(0))
            ((labels, _),) = (await scrape(master))[name]
            assert labels == BROKER_LABELS | {"slave": slave.address}
            assert name not in await scrape(slave)
            port = slave.config.listen_port
            await slave.stop()


async def test_switches_of_the_role_are_exported(tmp_path: Path) -> None:
    settings = {"metrics_exporter_type": MetricsExporterType.PROM, "metrics_prom_exporter_port": 0}
    last, count = "rocketmq_broker_last_switch_timestamp_seconds", "rocketmq_broker_switches_total"

    def by_reason(samples: Samples) -> dict[str, float]:
        return {labels["reason"]: value for labels, value in samples[count] if value}

    async with pair(tmp_path, messages=3, **settings) as (_, first, second):
        samples = await scrape(second)
        assert sample_value(samples, last, **BROKER_LABELS) == 0
        assert by_reason(samples) == {}
        assert sample_value(samples, count, **BROKER_LABELS, reason="election") == 0, "for a rate"
        await second.role.become_master(2, None)
        await first.role.become_slave(2, 1, f"{HOST}:{second.config.ha_listen_port}", reason=SwitchReason.DEMOTE)
        await follows(second, first)
        samples = await scrape(second)
        assert sample_value(samples, last, **BROKER_LABELS) == second.role.last_switch.at_ms / 1000 > 0
        assert by_reason(samples) == {"election": 1}
        assert by_reason(await scrape(first)) == {"demote": 1}


async def test_member_retry_and_dead_letter_metrics_are_exported(tmp_path: Path) -> None:
    async with metered_broker(tmp_path) as (running, broker):
        async with Producer("p", running.namesrv) as producer:
            await producer.send(Message("T", b"x"))
            await producer.instance.send_heartbeats()
            assert sample_value(await scrape(broker), "rocketmq_producer_count", **BROKER_LABELS, group="p") == 1
        consumer = PushConsumer("g", running.namesrv, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        consumer.subscribe("T")
        async with consumer:
            message = await anext(consumer.messages())
            await consumer.reconsume_later(message, -1)
        async with consumer:  # which has told how far it is
            samples = await scrape(broker)
            assert sample_value(samples, "rocketmq_send_back_nums", **BROKER_LABELS, topic="T", group="g") == 1
            assert samples["rocketmq_group_count"] == [({"group": "g"}, 1)]
        samples = await scrape(broker)
        assert "rocketmq_group_count" not in samples
        assert sample_value(samples, "rocketmq_topic_dlq_offset", **BROKER_LABELS, group="g") == 1
        assert sample_value(samples, "rocketmq_topic_retry_offset", **BROKER_LABELS, topic="%RETRY%g") == 0


@pytest.mark.parametrize(
    ("request_line", "status"),
    [(b"GET / HTTP/1.1", b"404"), (b"POST /metrics HTTP/1.1", b"405"), (b"GET", b"404"), (b"GET /metrics?x=1", b"200")],
)
async def test_other_http_requests_are_refused(tmp_path: Path, request_line: bytes, status: bytes) -> None:
    async with metered_broker(tmp_path) as (_, broker):
        head, _ = await http_request(broker.config.metrics_prom_exporter_port, request_line + b"\r\n\r\n")
        assert head.split(b" ")[1] == status


async def test_a_connection_without_a_request_is_closed(tmp_path: Path) -> None:
    async with metered_broker(tmp_path) as (_, broker):
        port = broker.config.metrics_prom_exporter_port
        assert await http_request(port, 20_000 * b"x") == (b"", b"")
        _, silent = await asyncio.open_connection(HOST, port)
        assert await scrape(broker)
        await broker.stop()  # and does not wait for it
        silent.close()


async def test_held_pulls_and_the_memory_of_connections_are_exported(tmp_path: Path) -> None:
    """They return to 0 when the clients are gone."""

    async def value(name: str) -> float:
        return sample_value(await scrape(broker), name, **BROKER_LABELS)

    async def holds(count: int) -> bool:
        return await value("rocketmq_held_pulls") == count

    async with metered_broker(tmp_path) as (_, broker):
        client = RemotingClient()
        connection = await client.connect(broker.address)
        answers = []
        for queue_id in range(2):
            header = pull_header(
                queue_id=queue_id, sys_flag=pull.SUSPEND | pull.SUBSCRIPTION, suspend_timeout_millis=1 << 60
            )
            answers.append(connection.post(RemotingCommand.request(RequestCode.PULL_MESSAGE, header)))
        await until(lambda: holds(2))
        assert await value("rocketmq_unsent_bytes") == await value("rocketmq_partial_frame_bytes") == 0
        await client.close()
        await until(lambda: holds(0))
        assert all(isinstance(answer.exception(), RemotingError) for answer in answers)


async def test_what_a_group_holds_by_pop_is_exported(tmp_path: Path) -> None:
    labels = BROKER_LABELS | {"topic": "T", "group": "g"}
    async with metered_broker(tmp_path) as (running, broker):
        peer = running.peer(broker)
        for _ in range(3):
            await peer.send()
        (held,) = await receive(peer, max_msg_nums=1)
        text = await scrape(broker)
        assert sample_value(text, "rocketmq_consumer_ready_messages", **labels) == 2
        assert sample_value(text, "rocketmq_consumer_inflight_messages", **labels) == 1
        assert sample_value(text, "rocketmq_consumer_inflight_age_ms", **labels) >= 0
        await ack(peer, held)
        assert sample_value(await scrape(broker), "rocketmq_consumer_inflight_messages", **labels) == 0


async def test_groups_beyond_the_limit_are_summed(tmp_path: Path) -> None:
    """By POP, what is ready and held, except the group with the oldest message; by pull, what is read."""
    metered = {"metrics_exporter_type": MetricsExporterType.PROM, "metrics_prom_exporter_port": 0}
    async with cluster(tmp_path) as running:
        now_ms = wall_clock_ms()
        broker = await running.start_broker(metrics_group_count=1, clock=lambda: now_ms, **metered)
        await running.create_topic(broker, "T", 1)
        peer = running.peer(broker)
        for _ in range(4):
            await peer.send()
        # The windows of the groups begin here, that of the broker before.
        now_ms += 30_000
        slices.run(broker.parts.services.clients._state.stats.sample_steps(now_ms))  # type: ignore[union-attr]
        for group, count in (("a", 1), ("b", 2), ("c", 3)):
            assert len(await receive(peer, consumer_group=group, max_msg_nums=count)) == count
            now_ms += 1000
        async with PullConsumer("d", running.namesrv) as one, PullConsumer("e", running.namesrv) as other:
            (queue,) = await one.queues("T")
            for consumer, offset in ((one, 1), (other, 2)):
                await consumer.pull(queue, 0)
                await consumer.commit(queue, offset)
        now_ms += 7_000
        samples = await scrape(broker)

        def by_group(name: str) -> dict[str, float]:
            return {labels["group"]: value for labels, value in samples[f"rocketmq_{name}"]}

        assert by_group("consumer_inflight_messages") == {"a": 1, "c": 3, "other": 2}
        assert by_group("consumer_ready_messages") == {"a": 3, "c": 1, "other": 2}
        assert by_group("consumer_inflight_age_ms") == {"a": 10_000, "c": 8_000, "other": 9_000}
        rates = by_group("consumer_tps")
        (shown,) = rates.keys() - {"other"}
        reads = {"a": 1, "b": 2, "c": 3, "d": 4, "e": 4}
        others = (sum(reads.values()) - reads[shown]) / 40
        assert rates == {shown: pytest.approx(reads[shown] / 10), "other": pytest.approx(others)}


async def test_the_version_that_runs_is_exported(tmp_path: Path) -> None:
    async with metered_broker(tmp_path) as (_, broker):
        families = await families_of(broker.config.metrics_prom_exporter_port)
    labels = {"version": __version__, "commit": COMMIT, "python": platform.python_version()}
    (sample,) = [sample for family in families for sample in family.samples if family.name == "rucola_build_info"]
    assert (sample.labels, sample.value) == (labels, 1)


async def test_probes_are_answered_before_the_broker_serves(tmp_path: Path) -> None:
    """With the progress of a recovery, which may take minutes."""
    async with metered_broker(tmp_path) as (running, broker):
        await running.peer(broker).send()
        await broker.stop()
        (tmp_path / "broker-a" / "abort").touch()
        await broker.open()
        port, statuses = broker.config.metrics_prom_exporter_port, {}
        for started in (False, True):
            for path in ("live", "ready", "metrics"):
                head, body = await http_request(port, f"GET /{path} HTTP/1.1\r\n\r\n".encode())
                statuses[path, started] = head.split()[1]
                if path == "ready" and not started:
                    assert b"the log is read up to" in body
            if not started:
                await broker.start()
        assert statuses == {
            ("live", False): b"200", ("ready", False): b"503", ("metrics", False): b"503",
            ("live", True): b"200", ("ready", True): b"200", ("metrics", True): b"200",
        }  # fmt: skip


async def test_a_second_broker_on_a_store_is_refused_for_that(tmp_path: Path) -> None:
    """And not for the port of the metrics, which is in use as well."""
    async with metered_broker(tmp_path) as (_, broker):
        with pytest.raises(StoreLocked):
            await Broker(broker.config, broker.store_config).start()


async def test_the_series_of_topics_and_groups_are_bounded(tmp_path: Path) -> None:
    """The largest are shown; the others are summed."""
    settings = {"metrics_topic_count": 2, "metrics_group_count": 2}
    async with cluster(tmp_path) as running:
        metered = {"metrics_exporter_type": MetricsExporterType.PROM, "metrics_prom_exporter_port": 0}
        broker = await running.start_broker(**metered, **settings)
        slave = await running.start_slave(**metered, **settings)
        async with Producer("p", running.namesrv) as producer, AdminClient(running.namesrv) as admin:
            for number in range(5):
                await running.create_topic(broker, f"T{number}", 1)
                for _ in range(10 - number):
                    await producer.send(Message(f"T{number}", b"x"))
                await admin.groups.create_or_update(broker.address, SubscriptionGroupConfig(group_name="g"))
                await admin.offsets.commit(broker.address, "g", MessageQueue(f"T{number}", "broker-a", 0), 1)
        samples = await scrape(broker)

        def by_topic(name: str) -> dict[str, float]:
            return {labels["topic"]: value for labels, value in samples[name]}

        assert by_topic("rocketmq_producer_offset") == {"T0": 10, "T1": 9, "other": 8 + 7 + 6}
        assert by_topic("rocketmq_group_diff") == {"T0": 9, "T1": 8, "other": 7 + 6 + 5}
        assert by_topic("rocketmq_consumer_offset").keys() == {"T0", "T1"}
        assert sample_value(samples, "rocketmq_backlog_messages", **BROKER_LABELS) == 35
        assert sample_value(samples, "rocketmq_dead_letters", **BROKER_LABELS) == 0
        of_slave = await scrape(slave)
        assert "rocketmq_producer_offset" not in of_slave
        assert sample_value(of_slave, "rocketmq_broker_epoch", **BROKER_LABELS, role="SLAVE") >= 0
        assert sample_value(of_slave, "process_open_fds") > 0
