"""`rucola admin` with a server on the golden store, compared with the output of mqadmin for the same store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rucola.version import FULL_VERSION
from support.golden_cluster import GoldenCluster, words

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


def test_consumer_progress_lists_all_groups(cluster: GoldenCluster) -> None:
    groups = {group["group"]: group["diffTotal"] for group in cluster.json("consumerProgress")}
    assert groups["G_g_tag"] == 41
    assert groups["G_g_sql"] == 3
    assert ["G_g_tag", "0", "OFFLINE", "0", "41"] in cluster.rows("consumerProgress")


def test_a_group_without_offsets_is_shown(cluster: GoldenCluster) -> None:
    cluster.done("updateSubGroup -c DefaultCluster -g Fresh")
    result = cluster.admin("consumerProgress -g Fresh")
    assert (result.exit_code, result.stderr) == (0, "group Fresh has committed no offset\n")
    assert cluster.json("consumerProgress -g Fresh")["queues"] == []
    cluster.done("deleteSubGroup -c DefaultCluster -g Fresh --yes")


def test_messages_are_found_by_key_and_unique_key(cluster: GoldenCluster, golden: Path) -> None:
    found = cluster.json("queryMsgByKey -t GA -k order-3")
    (message,) = found["messages"]
    assert (found["cut"], found["failures"]) == (False, {})
    assert message["msgId"] == "C00002022DAF5FFD2B2766E1A86E0003"
    by_unique_key = cluster.json(f"queryMsgByUniqueKey -t GA -i {message['msgId']}")
    assert by_unique_key["messages"] == [message]
    expected = {}
    for line in (golden / "g1-clean" / "expected.jsonl").read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        if fields["topic"] == "GA" and fields["msgId"] == message["msgId"]:
            expected = fields
    assert expected
    assert {name: message[name] for name in expected if name in message} == {
        name: expected[name] for name in expected if name in message
    }
    lines = dict(row[:2] for row in cluster.rows(f"queryMsgByUniqueKey -t GA -i {message['msgId']}") if len(row) == 2)
    assert lines["Topic:"] == "GA"


def test_a_key_without_messages_is_an_error(cluster: GoldenCluster) -> None:
    result = cluster.admin("queryMsgByKey -t GA -k no-such-key")
    assert result.exit_code == 0
    assert words(result.stdout) == [["#Message", "ID", "#QID", "#Offset"]]
    assert result.stderr.startswith(f"not found in the searchable range: {cluster.broker} from 20")
    assert len(result.stderr.splitlines()) == 1


def test_a_truncated_answer_is_marked(cluster: GoldenCluster) -> None:
    result = cluster.admin("queryMsgByKey -t GSpam -k grp-31 -m 10")
    assert result.exit_code == 0
    assert len(words(result.stdout)) == 11
    assert "there may be more" in result.stderr
    assert cluster.json("queryMsgByKey -t GSpam -k grp-31 -m 10")["cut"] is True
    assert len(cluster.json("queryMsgByKey -t GSpam -k grp-31")["messages"]) == 40


def test_a_key_query_takes_a_time_window(cluster: GoldenCluster) -> None:
    messages = cluster.json("queryMsgByKey -t GSpam -k grp-31")["messages"]
    times = [message["storeTimestamp"] for message in messages]
    assert times == sorted(times, reverse=True)
    middle = times[len(times) // 2]
    found = cluster.json(f"queryMsgByKey -t GSpam -k grp-31 --since {middle}")["messages"]
    assert found == [message for message in messages if message["storeTimestamp"] >= middle]
    found = cluster.json(f"queryMsgByKey -t GSpam -k grp-31 -b {middle} --until {middle}")["messages"]
    assert found == [message for message in messages if message["storeTimestamp"] == middle]
    nothing = cluster.json("queryMsgByKey -t GSpam -k grp-31 --until 1000")
    assert nothing["messages"] == []
    assert nothing["searchable"][cluster.broker]["beginTimestamp"] > 1000


def test_a_message_is_found_by_its_offset_msg_id(cluster: GoldenCluster) -> None:
    """Ids in the store have the address of the broker that wrote it, so the id is changed to this broker's address."""
    port = int(cluster.broker.rpartition(":")[2])
    (message,) = cluster.json(f"queryMsgById -i 7F000001{port:08X}{0:016X}")
    assert message["commitLogOffset"] == 0
    assert message["msgId"] == "C00002022DAF5FFD2B2766E1A84D0000"
    rows = cluster.rows(f"queryMsgById -i 7F000001{port:08X}{0:016X},7F000001{port:08X}{0:016X}")
    assert rows.count(["Topic:", "GB"]) == 2


def test_topics_are_created_on_a_cluster(cluster: GoldenCluster) -> None:
    created = cluster.json("updateTopic -c DefaultCluster -t Made -r 3 -w 2 -p 4 -o true")
    assert created["brokerAddrs"] == [cluster.broker]
    route = cluster.json("topicRoute -t Made")
    (queues,) = route["queueDatas"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (3, 2, 4)
    lines = cluster.rows("updateTopic -c DefaultCluster -t Made -w 1")
    assert lines[0] == ["create", "topic", "to", cluster.broker, "success."]
