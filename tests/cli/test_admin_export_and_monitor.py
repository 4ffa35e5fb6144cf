"""Commands of `rucola admin` that export a cluster's settings and monitor its groups."""

from __future__ import annotations

import json
from pathlib import Path

from support.golden_cluster import GoldenCluster


def test_export_metadata_writes_topics_and_groups(cluster: GoldenCluster, tmp_path: Path) -> None:
    document = cluster.json("exportMetadata -c DefaultCluster")
    topics, groups = document["topicConfigTable"], document["subscriptionGroupTable"]
    assert topics["GA"]["writeQueueNums"] == 4
    assert "G_g_tag" in groups
    assert not [name for name in topics if name.startswith(("%", "RMQ_SYS", "SCHEDULE", "DefaultCluster", "broker-a"))]
    assert not [name for name in groups if name.startswith(("TOOLS", "CID_ONS"))]
    special = cluster.json(f"exportMetadata -b {cluster.broker} -s -t")
    assert {name for name in special["topicConfigTable"] if name not in topics} >= {"%RETRY%G_g_tag"}
    assert "subscriptionGroupTable" not in special

    printed = cluster.done(f"exportMetadata -c DefaultCluster -f {tmp_path}/new/place")
    path = tmp_path / "new" / "place" / "metadata.json"
    assert printed == f"export {path} success\n"
    assert json.loads(path.read_text())["topicConfigTable"] == topics
    assert cluster.json(f"exportMetadata -c DefaultCluster -g -f {tmp_path}") == {
        "path": str(tmp_path / "subscriptionGroup.json")
    }
    assert json.loads((tmp_path / "subscriptionGroup.json").read_text())["subscriptionGroupTable"] == groups


def test_exported_metadata_can_be_imported(cluster: GoldenCluster, tmp_path: Path) -> None:
    cluster.done("updateTopic -c DefaultCluster -t Kept -r 3 -w 2 -p 4")
    cluster.done("updateSubGroup -c DefaultCluster -g Kept -r 7")
    cluster.done(f"exportMetadata -c DefaultCluster -f {tmp_path}")
    cluster.done("deleteTopic -c DefaultCluster -t Kept --yes")
    cluster.done("deleteSubGroup -c DefaultCluster -g Kept --yes")
    path = tmp_path / "metadata.json"
    assert "Kept" in cluster.json(f"updateTopicList -c DefaultCluster -f {path}")["names"]
    assert f"to {cluster.broker} success" in cluster.done(f"updateSubGroupList -b {cluster.broker} -f {path}")
    again = cluster.json("exportMetadata -c DefaultCluster")
    assert again["topicConfigTable"]["Kept"]["readQueueNums"] == 3
    assert again["subscriptionGroupTable"]["Kept"]["retryMaxTimes"] == 7


def test_lists_of_rocketmq_5_can_be_imported(cluster: GoldenCluster, tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_text('[{"topicName": "Listed", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6, "unknown": 1}]')
    cluster.done(f"updateTopicList -c DefaultCluster -f {path}")
    assert len(cluster.json("topicStatus -t Listed")) == 2
    malformed = "is not a list of such settings"
    for text, reason in (("[1]", malformed), ("{", malformed), ("{}", "topicConfigTable"), ("1", malformed)):
        path.write_text(text)
        result = cluster.admin(f"updateTopicList -c DefaultCluster -f {path}")
        assert result.exit_code == 1
        assert reason in result.stderr
    assert cluster.admin(f"updateSubGroupList -c DefaultCluster -f {tmp_path}/nowhere").exit_code == 2


def test_export_configs_and_metrics_write_documents(cluster: GoldenCluster, tmp_path: Path) -> None:
    configs = cluster.json("exportConfigs -c DefaultCluster")
    assert configs["clusterScale"] == {"masterBrokerSize": 1, "namesrvSize": 1, "slaveBrokerSize": 0}
    assert configs["brokerConfigs"]["broker-a"]["brokerClusterName"] == "DefaultCluster"
    cluster.done("sendMessage -t GB -p x")
    metrics = cluster.json("exportMetrics -c DefaultCluster")
    quota = metrics["evaluateReport"]["broker-a"]["runtimeQuota"]
    assert quota["topicSize"] == len(cluster.json("exportMetadata -c DefaultCluster -t")["topicConfigTable"])
    assert float(quota["messageAverageSize"]) > 0
    assert quota["tps"]["normalInTps"] >= 0
    assert metrics["totalData"]["totalTps"].keys() == {
        "totalNormalInTps", "totalNormalOutTps", "totalScheduleInTps", "totalTransInTps",
    }  # fmt: skip
    for command, name in (("exportConfigs", "configs.json"), ("exportMetrics", "metrics.json")):
        cluster.done(f"{command} -c DefaultCluster -f {tmp_path}")
        assert json.loads((tmp_path / name).read_text())


def test_an_unwritable_export_directory_is_an_error(cluster: GoldenCluster, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = cluster.admin(f"exportConfigs -c DefaultCluster -f {tmp_path}/file/below")
    assert result.exit_code == 1
    assert "configs.json cannot be written" in result.stderr


def test_one_round_of_monitoring_prints_the_findings(cluster: GoldenCluster) -> None:
    found = [json.loads(line) for line in cluster.admin("startMonitoring --once --json").stdout.splitlines()]
    undone = {(one["group"], one["topic"]): one for one in found if one["event"] == "UNDONE"}
    of_group = undone["G_g_tag", "GA"]
    queues = cluster.json("consumerProgress -g G_g_tag -t GA")["queues"]
    assert (of_group["total"], of_group["singleQueue"]) == (41, max(queue["diff"] for queue in queues))
    assert of_group["delayMs"] > 0
    failed = {one["group"]: one["count"] for one in found if one["event"] == "FAILED"}
    assert failed == {group["group"]: group["waiting"] for group in cluster.json("dlqList") if group["waiting"]}
    assert all(one["total"] for one in undone.values())
    result = cluster.admin("startMonitoring --once")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert any("[MONITOR] UNDONE   group=G_g_tag topic=GA total=41" in line for line in lines)


def test_monitoring_reports_offset_moves(cluster: GoldenCluster) -> None:
    """The golden store has four such events; a check covers one interval."""
    found = [
        json.loads(line) for line in cluster.admin("startMonitoring --once --json -i 3000000000").stdout.splitlines()
    ]
    deleted = [one for one in found if one["event"] == "DELETED"]
    assert len(deleted) == 4
    assert all(one["offsetNew"] != one["offsetRequest"] for one in deleted)
    assert [one for one in cluster.admin("startMonitoring --once -i 1").stdout.splitlines() if "DELETED" in one] == []
