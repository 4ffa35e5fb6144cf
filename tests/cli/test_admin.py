"""`rucola admin` with a server on the golden store, compared with the output of mqadmin for the same store."""

from __future__ import annotations

import json

import pytest

from rucola.version import FULL_VERSION
from support.golden_cluster import GoldenCluster

pytestmark = pytest.mark.usefixtures("_utc")


@pytest.mark.parametrize("command", ["topicStatus -t GA", "queryMsgByKey -t GA -k order-3"])
def test_tables_equal_mqadmins(cluster: GoldenCluster, command: str) -> None:
    assert cluster.rows(command) == cluster.expected(command)


def test_consumer_progress_equals_mqadmins(cluster: GoldenCluster) -> None:
    """Except the rate, which a broker that has just started does not report."""
    command = "consumerProgress -g G_g_tag"
    assert _without_rate(cluster.rows(command)) == _without_rate(cluster.expected(command))


def _without_rate(rows: list[list[str]]) -> list[list[str]]:
    return [row for row in rows if row[:2] != ["Consume", "TPS:"]]


def test_topic_route_has_what_mqadmin_shows(cluster: GoldenCluster) -> None:
    recorded = cluster.recorded["topicRoute -n 127.0.0.1:9876 -t GA"].replace("127.0.0.1:10911", cluster.broker)
    expected = json.loads(recorded.replace("{0:", '{"0":'))
    shown = json.loads(cluster.admin("topicRoute -t GA").stdout)
    assert {name: shown[name] for name in expected} == expected
    assert cluster.json("topicRoute -t GA") == shown
    header, row, total = cluster.rows("topicRoute -t GA -l")
    assert header == ["#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm"]
    assert row == ["DefaultCluster", "broker-a", f"{{0={cluster.broker}}}", "4", "4", "6"]
    assert total == ["Total:", "1", "4", "4"]


def test_cluster_list_shows_the_brokers(cluster: GoldenCluster) -> None:
    (header, row), (expected_header, expected_row) = cluster.rows("clusterList"), cluster.expected("clusterList")
    assert header == expected_header
    assert row[:4] == expected_row[:4]
    assert (len(row), row[4], row[5][-7:]) == (10, f"V4_9_8({FULL_VERSION})", "(0,0ms)")
    (broker,) = cluster.json("clusterList")
    assert [broker[name] for name in ("clusterName", "brokerName", "brokerId", "brokerAddr")] == [
        "DefaultCluster",
        "broker-a",
        0,
        cluster.broker,
    ]


def test_a_message_is_found_by_its_offset_msg_id(cluster: GoldenCluster) -> None:
    """Ids in the store have the address of the broker that wrote it, so the id is changed to this broker's address."""
    port = int(cluster.broker.rpartition(":")[2])
    (message,) = cluster.json(f"queryMsgById -i 7F000001{port:08X}{0:016X}")
    assert message["commitLogOffset"] == 0
    assert message["msgId"] == "C00002022DAF5FFD2B2766E1A84D0000"
    rows = cluster.rows(f"queryMsgById -i 7F000001{port:08X}{0:016X},7F000001{port:08X}{0:016X}")
    assert rows.count(["Topic:", "GB"]) == 2
