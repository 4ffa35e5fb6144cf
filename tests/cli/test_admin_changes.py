"""Commands of `rucola admin` that change a cluster: output, effect and confirmation."""

from __future__ import annotations

from support.golden_cluster import GoldenCluster


def test_send_message_sends_a_message_that_is_found(cluster: GoldenCluster) -> None:
    sent = cluster.json("sendMessage -t GA -p hello -k 'key-1 key-2' -c TagA -b broker-a -i 3")
    assert (sent["brokerName"], sent["queueId"], sent["sendStatus"]) == ("broker-a", 3, "SEND_OK")
    (found,) = cluster.json("queryMsgByKey -t GA -k key-2")["messages"]
    assert (found["msgId"], found["body"], found["tags"]) == (sent["msgId"], "hello", "TagA")
    assert cluster.json(f"queryMsgById -i {sent['offsetMsgId']}")[0]["msgId"] == sent["msgId"]
    header, row = cluster.rows("sendMessage -t GA -p hello")
    assert row[2] == "SEND_OK"
    assert header == ["#Broker", "Name", "#QID", "#Send", "Result", "#MsgId"]


def test_deleting_a_group_removes_its_topics_and_offsets(cluster: GoldenCluster) -> None:
    assert "%RETRY%G_g_lite" in cluster.json("topicList")
    cluster.done("deleteSubGroup -c DefaultCluster -g G_g_lite -r true --yes")
    assert "%RETRY%G_g_lite" not in cluster.json("topicList")
    assert "there is no consumer group G_g_lite" in cluster.admin("consumerProgress -g G_g_lite").stderr
    assert cluster.admin("deleteSubGroup -c DefaultCluster -g G_g_lite --yes").exit_code == 1, "it is gone"
    unasked = cluster.admin("deleteSubGroup -c DefaultCluster -g G_g_lite")
    assert (unasked.exit_code, "[y/N]" in unasked.stderr) == (1, False)


def test_a_message_is_found_by_its_offset_id_as_by_its_unique_key(cluster: GoldenCluster) -> None:
    sent = cluster.json("sendMessage -t GB -p x")
    shown = cluster.done(f"queryMsgByUniqueKey -t GB -i {sent['offsetMsgId']}")
    assert shown == cluster.done(f"queryMsgByUniqueKey -t GB -i {sent['msgId']}")
    assert sent["offsetMsgId"] in shown
    unknown = cluster.admin(f"queryMsgByUniqueKey -t GB -i {'F' * 32}")
    assert unknown.exit_code == 0
    assert "not found in the searchable range" in unknown.stderr


def test_a_message_is_resent(cluster: GoldenCluster) -> None:
    sent = cluster.json("sendMessage -t GB -p twice -k twice")
    (again,) = cluster.json(f"queryMsgById -i {sent['offsetMsgId']} -s true")
    assert again["msgId"] == sent["msgId"]
    assert len(cluster.json("queryMsgByKey -t GB -k twice")["messages"]) == 2
    assert cluster.rows(f"queryMsgById -i {sent['offsetMsgId']} -s true")[1][2:] == ["SEND_OK", sent["msgId"]]


def test_all_messages_with_a_unique_key_are_shown_on_request(cluster: GoldenCluster) -> None:
    sent = cluster.json("sendMessage -t GB -p twice")
    cluster.done(f"queryMsgById -i {sent['offsetMsgId']} -s true")
    found = f"queryMsgByUniqueKey -t GB -i {sent['msgId']}"
    assert len(cluster.json(found)["messages"]) == 1
    assert {message["msgId"] for message in cluster.json(f"{found} -a")["messages"]} == {sent["msgId"]}
    assert len(cluster.json(f"{found} -a")["messages"]) == 2
    assert len([row for row in cluster.rows(f"{found} -a") if row[:1] == ["Topic:"]]) == 2


def test_query_msg_trace_shows_a_trace(cluster: GoldenCluster) -> None:
    sent = cluster.json("sendMessage -t GB -p traced -m true")
    (send,) = cluster.json(f"queryMsgTraceById -i {sent['msgId']}")["sends"]
    assert (send["topic"], send["offsetMsgId"]) == ("GB", sent["offsetMsgId"])
    header, row, *_ = cluster.rows(f"queryMsgTraceById -i {sent['msgId']}")
    assert header == ["#Type", "#ProducerGroup", "#ClientHost", "#SendTime", "#CostTimes", "#Status"]
    assert (row[:2], row[-1]) == (["Pub", "TOOLS_PRODUCER"], "success")
    untraced = cluster.json("sendMessage -t GB -p untraced")
    result = cluster.admin(f"queryMsgTraceById -i {untraced['msgId']}")
    assert result.exit_code == 1
    assert f"no trace of {untraced['msgId']}" in result.stderr


def test_what_is_no_discarded_transaction_is_not_resumed(cluster: GoldenCluster) -> None:
    sent = cluster.json("sendMessage -t GA -p hello -b broker-a -i 3")
    refused = cluster.admin(f"resumeCheckHalfMessage -i {sent['offsetMsgId']}")
    assert refused.exit_code == 1
    assert sent["msgId"] in refused.stderr
    assert "GA" in refused.stderr
