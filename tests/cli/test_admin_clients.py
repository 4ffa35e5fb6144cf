"""Commands of `rucola admin` about connected clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rucola.client import ConsumeFromWhere, Message, sync
from support.golden_cluster import GoldenCluster

GROUP = "C_live"


@pytest.fixture
def consumed(cluster: GoldenCluster) -> Iterator[list[str]]:
    """Connect a consumer of GOrder for the duration of a test; yields the ids of its messages."""
    ids: list[str] = []
    consumer = sync.PushConsumer(GROUP, cluster.namesrv, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe("GOrder")
    consumer.listen(lambda message: ids.append(message.msg_id))
    with consumer:
        yield ids


def client_id(cluster: GoldenCluster) -> str:
    (connection,) = cluster.json(f"consumerConnection -g {GROUP}")["connectionSet"]
    return str(connection["clientId"])


def test_consumer_connection_lists_a_consumer(cluster: GoldenCluster, consumed: list[str]) -> None:
    rows = cluster.rows(f"consumerConnection -g {GROUP}")
    assert rows[0] == ["#ClientId", "#ClientAddr", "#Language", "#Version"]
    assert rows[1][0] == client_id(cluster)
    assert rows[1][2:] == ["PYTHON", "V4_9_8"]
    assert ["GOrder", "*"] in rows
    assert ["MessageModel:", "CLUSTERING"] in rows
    assert [GROUP, "1", "V4_9_8", "PUSH", "CLUSTERING"] in [row[:5] for row in cluster.rows("consumerProgress")]


def test_consumer_status_shows_the_running_info(cluster: GoldenCluster, consumed: list[str]) -> None:
    status = cluster.json(f"consumerStatus -g {GROUP}")
    assert (status["sameSubscription"], status["queuesWithSeveralOwners"]) == (True, [])
    (info,) = status["clients"].values()
    assert len([held for held in info["mqTable"] if held["topic"] == "GOrder"]) == 4
    rows = cluster.rows(f"consumerStatus -g {GROUP}")
    assert ["Rebalance", "OK"] in rows
    assert ["consumerGroup", ":", GROUP] in rows
    assert {"GOrder", f"%RETRY%{GROUP}"} == set(info["statusTable"])
    assert set(info["statusTable"]["GOrder"]) == {
        "consumeFailedMsgs", "consumeFailedTPS", "consumeOKTPS", "consumeRT", "pullRT", "pullTPS",
    }  # fmt: skip
    assert ["#Consumer", "RT&TPS#"] in rows
    assert ["Rebalance", "OK"] not in cluster.rows(f"consumerStatus -g {GROUP} -i {client_id(cluster)}")


def test_consumer_progress_shows_the_client_of_each_queue(cluster: GoldenCluster, consumed: list[str]) -> None:
    cluster.done("resetOffsetByTime -g G_g_order -t GOrder -s 0 --yes")
    cluster.done(f"cloneGroupOffset -s G_g_order -d {GROUP} -t GOrder -o true --yes")
    queues = cluster.json(f"consumerProgress -g {GROUP} -t GOrder -s true")["queues"]
    assert {queue["clientId"] for queue in queues} == {client_id(cluster)}
    header, *rows = cluster.rows(f"consumerProgress -g {GROUP} -t GOrder -s true")
    assert header[8:10] == ["#Client", "IP"]
    assert rows[0][5] == client_id(cluster).partition("@")[0]


def test_query_msg_by_id_has_a_consumer_consume_directly(cluster: GoldenCluster, consumed: list[str]) -> None:
    sent = cluster.json("sendMessage -t GB -p 'straight to you'")
    client = client_id(cluster)
    (result,) = cluster.json(f"queryMsgById -i {sent['offsetMsgId']} -g {GROUP} -d {client}")
    assert result["consumeResult"] == "CR_SUCCESS"
    assert sent["msgId"] in consumed, "it does not subscribe to that topic"
    rows = cluster.rows(f"queryMsgByUniqueKey -t GB -i {sent['msgId']} -g {GROUP} -d {client}")
    assert rows[1][:2] == [sent["offsetMsgId"], "CR_SUCCESS"]
    assert consumed.count(sent["msgId"]) == 2
    nobody = cluster.admin(f"queryMsgById -i {sent['offsetMsgId']} -g {GROUP} -d nobody")
    assert nobody.exit_code == 1
    assert "nobody" in nobody.stderr


def test_producer_connection_lists_a_producer(cluster: GoldenCluster) -> None:
    with sync.Producer("P_live", cluster.namesrv) as producer:
        producer.send(Message("GB", b"x"))
        seen = cluster.admin("producerConnection -g P_live -t GB --json")
        while seen.exit_code:  # until its first heartbeat has arrived
            assert "P_live" in seen.stderr
            seen = cluster.admin("producerConnection -g P_live -t GB --json")
        assert ["P_live"] in [row[:1] for row in cluster.rows(f"producer -b {cluster.broker}")]
        (row,) = cluster.json(f"producer -b {cluster.broker}")["P_live"]
        assert row["clientId"] == cluster.rows("producerConnection -g P_live -t GB")[1][0]
