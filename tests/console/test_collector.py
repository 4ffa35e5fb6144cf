"""The collector and the history: requests to brokers, freshness, and bounds."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from rucola.console.collector import LAG_WARNING, BrokerState, Snapshot
from rucola.console.history import MAX_BYTES, RESOLUTIONS, History
from rucola.console.pages.search import MAX_NAMES
from rucola.console.visit import ROWS
from rucola.domain.client import ClientConnection, ConsumerConnection
from rucola.domain.group import SubscriptionGroupConfig, SubscriptionGroupWrapper
from rucola.domain.role import ElectionStatus, HaStatus
from rucola.domain.topic import TopicConfig, TopicConfigSerializeWrapper
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.connection import Connection
from support.cluster import cluster
from support.console import visitor

TOPICS, GROUPS = 5000, 2000
TABLES = {
    RequestCode.GET_BROKER_RUNTIME_INFO: {"table": {"putTps": "1.0 1.0 1.0"}},
    RequestCode.GET_ALL_TOPIC_CONFIG: TopicConfigSerializeWrapper(
        topic_config_table={f"topic-{n:04}": TopicConfig(topic_name=f"topic-{n:04}") for n in range(TOPICS)}
    ),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: SubscriptionGroupWrapper(
        subscription_group_table={
            f"group-{n:04}": SubscriptionGroupConfig(group_name=f"group-{n:04}") for n in range(GROUPS)
        }
    ),
    RequestCode.VIEW_BROKER_STATS_DATA: {},
    RequestCode.GET_CONSUME_STATS: {"consumeTps": 0.5, "offsetTable": {}},
}  # fmt: skip
OF_ONE = {
    RequestCode.GET_TOPIC_STATS_INFO: {"offsetTable": {}},
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: {"groupList": ["Orders"]},
    RequestCode.GET_CONSUMER_CONNECTION_LIST: ConsumerConnection(
        connection_set=[ClientConnection(client_addr="10.0.0.1:1", client_id="Orders", language="JAVA", version=409)]
    ),
}  # fmt: skip
"""What the pages of one topic and one group ask."""
BODIES = {code: msgspec.json.encode(table) for code, table in (TABLES | OF_ONE).items()}


async def test_a_page_asks_for_the_rows_that_it_shows(tmp_path: Path) -> None:
    """At most a few requests a broker, and one a row and broker; none for what was asked lately."""
    asked: list[tuple[int, str]] = []

    def answer(_: Connection, command: RemotingCommand) -> RemotingCommand:
        asked.append((command.code, str(command.ext_fields)))
        if command.code == RequestCode.VIEW_BROKER_STATS_DATA:
            return command.response(ResponseCode.SYSTEM_ERROR, remark="nothing was counted")
        return command.response(ResponseCode.SUCCESS, body=BODIES[RequestCode(command.code)])

    async with cluster(tmp_path) as running:
        for name in ("broker-a", "broker-b"):
            server = await running.scripted_broker(name, "topic-0000", dict.fromkeys(BODIES, answer))
        async with visitor(running.namesrv, interval_s=3600, requests_per_second=1000) as console:
            await console.console.collector.wait_first(60)
            tables = 3 * 2
            assert len([code for code, _ in asked if code != RequestCode.GET_CONSUME_STATS]) == tables
            for path, total in (("/topics", TOPICS), ("/groups", GROUPS)):
                first = await console.get(f"{path}?sort=name")
                assert f"{total:,} rows" in first.text
                assert len(first.content) < 30_000
                again = await console.get(f"{path}?sort=name&page={total // ROWS}")
                assert f"-{total - ROWS:04}" in again.text
                assert "-0000" not in again.text
                await console.get(f"{path}?sort=name&q=-00")
            # Tabs of one topic and one group, of which each question is asked once.
            for _ in range(50):
                for path in ("/topic?name=topic-0000", "/group?name=group-0000"):
                    assert "Orders" in (await console.get(path)).text
            await console.get("/")
            assert (await console.get("/topic?name=none")).status_code == 404
            names = await console.text("/search?q=topic-")
            assert names.count("Topic: topic-") == MAX_NAMES
            assert "name the topic" in names, "which would be asked for a key"
            await console.get("/dead_letters")
            counted = list(asked)
            await server.stop()
            console.console.collector.group_progress.forget("group-0001")
            for path in ("/topic?name=topic-0001", "/group?name=group-0001"):
                text = await console.shows(path, "broker-b could not be read")
                assert "Orders" in text, "of broker-a"
        asked = counted
        rates = [fields for code, fields in asked if code == RequestCode.VIEW_BROKER_STATS_DATA]
        numbers = sorted({int(re.findall(r"\d{4}", fields)[0]) for fields in rates})
        first = next(at for at, number in enumerate(numbers) if at != number)
        assert first >= ROWS, "of the first page, and of topics that are measured in turn"
        assert numbers[first:] == list(range(TOPICS - ROWS, TOPICS)), "of the last page"
        assert Counter(code for code, _ in asked if code in OF_ONE) == dict.fromkeys(OF_ONE, 2)
        assert max(Counter(asked).values()) == 2, "each question once at each broker"
        assert len(asked) - len(rates) - tables - 2 * len(OF_ONE) <= 2 * GROUPS


def test_replication_that_lags_or_stops_is_an_alarm() -> None:
    def broker(broker_id: int, end: int, **ha: Any) -> BrokerState:
        status = HaStatus(
            broker_name="b", broker_id=broker_id, member_id=broker_id, role="SLAVE" if broker_id else "SYNC_MASTER",
            master_role="SYNC_MASTER", is_accepting=not broker_id, reason="", is_following=True, epoch=3, fenced_by=0,
            begin=0, end=end, epochs=[(3, 0)], ha_address="", role_since_ms=0,
        )  # fmt: skip
        stats = {"commitLogMaxOffset": str(end)}
        return BrokerState("c", "b", broker_id, f"10.0.0.{broker_id}:1", stats, msgspec.structs.replace(status, **ha))

    def alarms(*brokers: BrokerState) -> list[tuple[str, str]]:
        return [(one.subject, one.text.format(**one.fields)) for one in Snapshot(1, brokers).alarms()]

    gib = 1 << 30
    assert alarms(broker(0, gib), broker(1, gib - LAG_WARNING + 1)) == []
    assert alarms(broker(0, gib), broker(1, gib - LAG_WARNING)) == [
        ("b 10.0.0.1:1", "the slave lacks about 64 MiB of its master")
    ]
    assert alarms(broker(0, 0, fenced_by=4), broker(1, 9, is_following=False)) == [
        ("b 10.0.0.0:1", "a newer master of epoch 4 has fenced it"),
        ("b 10.0.0.1:1", "the slave does not follow its master"),
    ]
    election = ElectionStatus(
        epoch=3, in_sync=[0, 1, 2], members=[0], missing=[1, 2], is_etcd_away=False, right_seconds=1
    )
    assert alarms(broker(0, 0, election=election)) == [("b 10.0.0.0:1", "members 1, 2 of the in-sync set are missing")]
    lags = Snapshot(1, (broker(0, gib), broker(1, gib - 5), BrokerState("c", "b", 2, "10.0.0.2:1", error="away")))
    assert [lags.replication_lag(one) for one in lags.brokers] == [None, 5, None]


async def test_samples_are_kept_in_three_resolutions(tmp_path: Path) -> None:
    day = 86_400
    history = History(tmp_path / "history.db")
    await history.open()
    begin = 1_000_000 * 900
    for step in range(0, 3600, 10):
        await history.add(begin + step, {"puts": float(step), "gets": 1.0})
    end = begin + 3590
    assert len(await history.samples("puts", end - 600, end)) == 61
    assert await history.samples("none", end - 600, end) == []
    assert [one.value for one in await history.samples("puts", end - day, end)][:2] == [25.0, 85.0]
    assert [one.time_s for one in await history.samples("puts", end - 30 * day, end)] == [
        begin + n * 900 for n in range(4)
    ]
    await history.close()
    again = History(tmp_path / "history.db")
    await again.open()
    await again.add(begin + 91 * day, {"puts": 1.0})
    assert len(await again.samples("puts", 0, begin + 91 * day)) == 1, "all expired but the newest"
    await again.close()
    assert [one.kept_s for one in RESOLUTIONS] == [7200, 2 * day, 90 * day]


async def test_the_history_never_outgrows_its_limit(tmp_path: Path) -> None:
    history = History(tmp_path / "history.db", max_bytes=400 << 10)
    await history.open()
    for step in range(40):
        await history.add(900_000_000 + 10 * step, {f"series {n}": 1.0 for n in range(200)})
    newest = await history.samples("series 7", 900_000_000, 900_000_400)
    await history.close()
    assert newest[-1].time_s == 900_000_390
    assert (tmp_path / "history.db").stat().st_size <= 400 << 10
    assert MAX_BYTES == 200 << 20


async def test_many_topics_cost_the_brokers_no_history(tmp_path: Path) -> None:
    history = History(tmp_path / "history.db", max_bytes=400 << 10)
    await history.open()
    begin = 900_000_000
    for step in range(60):
        details = {f"topic puts_per_s {n}": 1.0 for n in range(100)} | {f"group backlog {n}": 1.0 for n in range(100)}
        await history.add(begin + 10 * step, {"puts_per_s broker-a": 1.0} | details)
    of_broker = await history.samples("puts_per_s broker-a", begin, begin + 600)
    of_topic = await history.samples("topic puts_per_s 7", begin, begin + 600)
    assert (len(of_broker), 0 < len(of_topic) < 60) == (60, True)
    await history.close()


async def test_a_directory_that_cannot_be_written_costs_the_history(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = History(tmp_path / "file" / "history.db")
    await history.open()
    await history.add(900, {"puts": 1.0})
    assert (history.is_kept, len(await history.samples("puts", 0, 900))) == (False, 1)
    await history.close()
