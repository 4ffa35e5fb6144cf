"""Read-only commands of `rucola admin` on the golden store, compared with recorded output of mqadmin."""

from __future__ import annotations

import json
import signal
import socket
import subprocess

import pytest

from rucola.version import FULL_VERSION
from support.golden_cluster import GoldenCluster
from support.servers import RUCOLA

pytestmark = pytest.mark.usefixtures("_utc")


def test_topics_are_listed_as_mqadmin_does(cluster: GoldenCluster) -> None:
    """Except system topics of Apache's broker that this broker does not have."""
    listed = {row[0] for row in cluster.rows("topicList")}
    assert {row[0] for row in cluster.expected("topicList")} <= listed
    assert set(cluster.json("topicList")) == listed
    assert ["DefaultCluster", "GA", "G_g_tag"] in cluster.rows("topicList -c")
    assert cluster.rows("topicClusterList -t GA") == [["DefaultCluster"]]
    assert cluster.json("topicClusterList -t GA") == ["DefaultCluster"]


def test_consume_stats_of_a_broker_equal_mqadmins(cluster: GoldenCluster) -> None:
    """Apache omits topics to which connected clients do not subscribe; here no client is connected."""
    rows = cluster.rows(f"brokerConsumeStats -b {cluster.broker}")
    recorded = cluster.recorded["brokerConsumeStats -n 127.0.0.1:9876 -b 127.0.0.1:10911"]
    expected = [line.split() for line in recorded.splitlines()]
    assert rows[0] == expected[0]
    assert [row for row in expected[1:-2] if row not in rows] == []
    of_group = [row for row in rows if row[1:2] == ["G_g_tag"]]
    assert sum(int(row[6]) for row in of_group) == 41
    as_json = cluster.json(f"brokerConsumeStats -b {cluster.broker} -l 15")
    assert all(queue["diff"] >= 15 for queue in as_json["queues"])
    assert ("GA", 3) in {(queue["topic"], queue["queueId"]) for queue in as_json["queues"]}


def test_broker_consume_stats_respect_the_timeout_option(cluster: GoldenCluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        result = cluster.admin(f"brokerConsumeStats -b {address} -t 20")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{address} sent no response to GET_BROKER_CONSUME_STATS 317 within 20 ms" in result.stderr


def test_stats_of_all_topics_have_what_mqadmin_shows(cluster: GoldenCluster) -> None:
    header, *expected = cluster.expected("statsAll")
    shown_header, *rows = cluster.rows("statsAll")
    assert shown_header == header
    ahead = {(row[0], row[1]): row[2] for row in rows if len(row) == 7}
    for row in expected:
        if len(row) == 7 and not row[1].startswith("CID_"):
            assert ahead[row[0], row[1]] == row[2]
    (topic,) = cluster.json("statsAll -t GA")
    assert [(group["consumerGroup"], group["accumulation"]) for group in topic["groups"]] == [("G_g_tag", 41)]


def test_broker_status_has_apaches_names(cluster: GoldenCluster) -> None:
    recorded = cluster.recorded["brokerStatus -n 127.0.0.1:9876 -b 127.0.0.1:10911"]
    known = {line.partition(":")[0].strip() for line in recorded.splitlines()}
    (figures,) = cluster.json(f"brokerStatus -b {cluster.broker}").values()
    names = {name for name in figures if not name.startswith("commitLogDiskRatio_")}
    assert names <= known | {"rucolaVersion"}
    assert figures["rucolaVersion"] == FULL_VERSION
    assert figures["commitLogMaxOffset"] >= "1393350"
    assert figures["brokerVersionDesc"] == "V4_9_8"
    shown = {line.partition(":")[0].strip() for line in cluster.done(f"brokerStatus -b {cluster.broker}").splitlines()}
    assert names <= shown


def test_cluster_list_shows_daily_message_counts(cluster: GoldenCluster) -> None:
    cluster.done("sendMessage -t GReply -p x")
    header, row = cluster.rows("clusterList -m")
    assert header[-4:] == ["#InTotalYest", "#OutTotalYest", "#InTotalToday", "#OutTotalToday"]
    assert row[:2] == ["DefaultCluster", "broker-a"]
    assert int(row[4]) >= 1


def test_cluster_list_repeats_until_it_is_interrupted(cluster: GoldenCluster) -> None:
    command = [*RUCOLA, "admin", "clusterList", "-n", cluster.namesrv, "-i", "0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = [process.stdout.readline() for _ in range(6)]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == ""
    assert [line.split()[1] for line in lines[1::2]] == ["broker-a"] * 3


def test_consumer_progress_shows_the_delay(cluster: GoldenCluster) -> None:
    queues = cluster.json("consumerProgress -g G_g_tag -t GA -d true")["queues"]
    assert all((queue["delayMs"] > 0) == (queue["diff"] > 0) for queue in queues)
    header, *rows = cluster.rows("consumerProgress -g G_g_tag -t GA -d true")
    assert header[-1] == "#Delay(ms)"
    assert all(int(row[-1]) > 0 for row in rows[:4])


def test_consume_message_leaves_no_offsets(cluster: GoldenCluster) -> None:
    before = cluster.rows("consumerProgress -g G_g_tag")
    lines = cluster.done("consumeMessage -t GA -c 5 --json").splitlines()
    assert [json.loads(line)["queueOffset"] for line in lines] == [0, 1, 2, 3, 4]
    (line,) = cluster.done("consumeMessage -t GA -b broker-a -i 2 -o 33 --json").splitlines()
    assert json.loads(line)["queueOffset"] == 33
    assert cluster.rows("consumerProgress -g G_g_tag")[:5] == before[:5]


def test_broker_and_name_server_configurations_are_shown(cluster: GoldenCluster) -> None:
    (broker,) = cluster.json(f"getBrokerConfig -b {cluster.broker}").values()
    assert (broker["brokerName"], broker["deleteWhen"]) == ("broker-a", "99")
    (namesrv,) = cluster.json("getNamesrvConfig").values()
    assert namesrv["listenPort"] == cluster.namesrv.rpartition(":")[2]
    assert ["brokerName", "=", "broker-a"] in cluster.rows(f"getBrokerConfig -b {cluster.broker}")
    assert ["orderMessageEnable", "=", "false"] in cluster.rows("getNamesrvConfig")


def test_response_time_commands_measure_sends(cluster: GoldenCluster) -> None:
    (row,) = cluster.json("clusterRT -a 3")
    assert (row["brokerName"], row["successCount"], row["failCount"]) == ("broker-a", 3, 0)
    assert cluster.done("clusterRT -a 1 -p true -m east").count("|") == 4
    assert len(cluster.json("checkMsgSendRT -t GReply -a 4 -s 10")["sends"]) == 4
    assert cluster.rows("checkMsgSendRT -t GReply -a 2")[-1][:2] == ["Avg", "RT:"]
    assert [send["sent"] for send in cluster.json("sendMsgStatus -b broker-a -c 2")] == [True, True]
