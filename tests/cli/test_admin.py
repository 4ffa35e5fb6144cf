"""`rucola admin` against a server on the golden store, held against what mqadmin printed for the same store."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rucola.cli.main import main
from servers import server


class Cluster:
    """The golden store, served."""

    def __init__(self, namesrv: str, broker: str, mqadmin: str) -> None:
        self.namesrv = namesrv
        self.broker = broker
        sections = re.split(r"^### mqadmin (.*)\n", mqadmin, flags=re.MULTILINE)
        self.recorded = dict(zip(sections[1::2], sections[2::2], strict=True))

    def admin(self, command: str) -> Result:
        return CliRunner().invoke(main, ["admin", *shlex.split(command)], env={"NAMESRV_ADDR": self.namesrv})

    def rows(self, command: str) -> list[list[str]]:
        """The words of every line printed."""
        result = self.admin(command)
        assert result.exit_code == 0, result.stderr
        return words(result.stdout)

    def json(self, command: str) -> Any:
        result = self.admin(command + " --json")
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    def expected(self, command: str) -> list[list[str]]:
        """The words of every line that mqadmin printed, with this broker's address."""
        name, _, rest = command.partition(" ")
        text = self.recorded[f"{name} -n 127.0.0.1:9876{' ' if rest else ''}{rest}"]
        return words(text.replace("127.0.0.1:10911", self.broker))


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


@pytest.fixture(scope="module")
def cluster(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    store = Path(shutil.copytree(golden / "g1-clean" / "store", directory / "store"))
    ports = ("--namesrv-port", "0", "--broker-port", "0")
    conf = golden / "g1-clean" / "broker.conf"
    with server("standalone", "--store", store, *ports, "-c", conf, log=directory / "log") as standalone:
        yield Cluster(*standalone.addresses(), (golden / "g1-clean" / "mqadmin.txt").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """mqadmin was recorded where local time was UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize("command", ["topicStatus -t GA", "queryMsgByKey -t GA -k order-3"])
def test_tables_read_as_mqadmins(cluster: Cluster, command: str) -> None:
    assert cluster.rows(command) == cluster.expected(command)


def test_consumer_progress_reads_as_mqadmins(cluster: Cluster) -> None:
    """But for the rate, which a broker that has just started does not have."""
    command = "consumerProgress -g G_g_tag"
    assert _without_rate(cluster.rows(command)) == _without_rate(cluster.expected(command))


def _without_rate(rows: list[list[str]]) -> list[list[str]]:
    return [row for row in rows if row[:2] != ["Consume", "TPS:"]]


def test_topic_route_has_what_mqadmin_shows(cluster: Cluster) -> None:
    recorded = cluster.recorded["topicRoute -n 127.0.0.1:9876 -t GA"].replace("127.0.0.1:10911", cluster.broker)
    expected = json.loads(recorded.replace("{0:", '{"0":'))
    shown = json.loads(cluster.admin("topicRoute -t GA").stdout)
    assert {name: shown[name] for name in expected} == expected
    assert cluster.json("topicRoute -t GA") == shown
    header, row, total = cluster.rows("topicRoute -t GA -l")
    assert header == ["#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm"]
    assert row == ["DefaultCluster", "broker-a", f"{{0={cluster.broker}}}", "4", "4", "6"]
    assert total == ["Total:", "1", "4", "4"]


def test_cluster_list(cluster: Cluster) -> None:
    (header, row), (expected_header, expected_row) = cluster.rows("clusterList"), cluster.expected("clusterList")
    assert header == expected_header
    assert row[:4] == expected_row[:4]
    (broker,) = cluster.json("clusterList")
    assert [broker[name] for name in ("clusterName", "brokerName", "brokerId", "brokerAddr")] == [
        "DefaultCluster",
        "broker-a",
        0,
        cluster.broker,
    ]


def test_all_groups(cluster: Cluster) -> None:
    groups = {group["group"]: group["diffTotal"] for group in cluster.json("consumerProgress")}
    assert groups["G_g_tag"] == 41
    assert groups["G_g_sql"] == 3
    assert ["G_g_tag", "0", "OFFLINE", "0", "41"] in cluster.rows("consumerProgress")


def test_a_group_that_nobody_knows(cluster: Cluster) -> None:
    result = cluster.admin("consumerProgress -g nobody")
    assert result.exit_code == 0
    assert "nobody" in result.stderr
    assert cluster.json("consumerProgress -g nobody")["queues"] == []


def test_messages_by_key_and_by_unique_key(cluster: Cluster, golden: Path) -> None:
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


def test_no_message_has_the_key(cluster: Cluster) -> None:
    result = cluster.admin("queryMsgByKey -t GA -k no-such-key")
    assert result.exit_code == 0
    assert words(result.stdout) == [["#Message", "ID", "#QID", "#Offset"]]
    assert result.stderr == "no message has it\n"


def test_a_cut_answer_says_so(cluster: Cluster) -> None:
    result = cluster.admin("queryMsgByKey -t GSpam -k grp-31 -m 10")
    assert result.exit_code == 0
    assert len(words(result.stdout)) == 11
    assert "there may be more" in result.stderr
    assert cluster.json("queryMsgByKey -t GSpam -k grp-31 -m 10")["cut"] is True
    assert len(cluster.json("queryMsgByKey -t GSpam -k grp-31")["messages"]) == 40


def test_a_message_by_offset_msg_id(cluster: Cluster) -> None:
    """Ids in the store name the address of the broker that wrote it; here the same place is asked at this broker."""
    port = int(cluster.broker.rpartition(":")[2])
    (message,) = cluster.json(f"queryMsgById -i 7F000001{port:08X}{0:016X}")
    assert message["commitLogOffset"] == 0
    assert message["msgId"] == "C00002022DAF5FFD2B2766E1A84D0000"
    rows = cluster.rows(f"queryMsgById -i 7F000001{port:08X}{0:016X},7F000001{port:08X}{0:016X}")
    assert rows.count(["Topic:", "GB"]) == 2


def test_topics_are_created_on_a_cluster(cluster: Cluster) -> None:
    created = cluster.json("updateTopic -c DefaultCluster -t Made -r 3 -w 2 -p 4 -o true")
    assert created["brokerAddrs"] == [cluster.broker]
    route = cluster.json("topicRoute -t Made")
    (queues,) = route["queueDatas"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (3, 2, 4)
    lines = cluster.rows("updateTopic -c DefaultCluster -t Made -w 1")
    assert lines[0] == ["create", "topic", "to", cluster.broker, "success."]


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("topicStatus -t Unknown", 1, "Unknown"),
        ("updateTopic -c Elsewhere -t T", 1, "DefaultCluster"),
        ("updateTopic -t T", 2, "-b"),
        ("updateTopic -b a:1 -c C -t T", 2, "-b"),
        ("queryMsgById -i 4711", 1, "4711"),
    ],
)
def test_what_cannot_be_done_is_said(cluster: Cluster, command: str, code: int, said: str) -> None:
    result = cluster.admin(command)
    assert result.exit_code == code
    assert result.stdout == ""
    assert said in result.stderr
