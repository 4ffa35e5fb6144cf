"""Commands of `rucola admin` that change a cluster: output, effect and confirmation."""

from __future__ import annotations

import pytest

from support.golden_cluster import GoldenCluster


def test_update_topic_perm_changes_permissions(cluster: GoldenCluster) -> None:
    (changed,) = cluster.json("updateTopicPerm -c DefaultCluster -t GB -p 4")
    assert (changed["oldPerm"], changed["topicConfig"]["perm"]) == (6, 4)
    assert cluster.json("topicRoute -t GB")["queueDatas"][0]["perm"] == 4
    refused = cluster.admin("sendMessage -t GB -p x")
    assert refused.exit_code == 1
    assert "GB" in refused.stderr
    first, _ = cluster.rows(f"updateTopicPerm -b {cluster.broker} -t GB -p 6")
    assert first == f"update topic perm from 4 to 6 in {cluster.broker} success.".split()


def test_delete_topic_asks_for_confirmation(cluster: GoldenCluster) -> None:
    cluster.done("updateTopic -c DefaultCluster -t Gone -r 1 -w 1")
    kept = cluster.admin("deleteTopic -c DefaultCluster -t Gone", "n\n")
    assert kept.exit_code == 1
    assert "delete topic Gone from cluster DefaultCluster?" in kept.stderr
    assert "Gone" in cluster.json("topicList")
    assert cluster.admin("deleteTopic -c DefaultCluster -t Gone", "y\n").exit_code == 0
    assert "Gone" not in cluster.json("topicList")
    cluster.done("updateTopic -c DefaultCluster -t Gone -r 1 -w 1")
    assert cluster.json("deleteTopic -c DefaultCluster -t Gone --yes")["brokerAddrs"] == [cluster.broker]


def test_send_message_sends_a_message_that_is_found(cluster: GoldenCluster) -> None:
    sent = cluster.json("sendMessage -t GA -p hello -k 'key-1 key-2' -c TagA -b broker-a -i 3")
    assert (sent["brokerName"], sent["queueId"], sent["sendStatus"]) == ("broker-a", 3, "SEND_OK")
    (found,) = cluster.json("queryMsgByKey -t GA -k key-2")["messages"]
    assert (found["msgId"], found["body"], found["tags"]) == (sent["msgId"], "hello", "TagA")
    assert cluster.json(f"queryMsgById -i {sent['offsetMsgId']}")[0]["msgId"] == sent["msgId"]
    header, row = cluster.rows("sendMessage -t GA -p hello")
    assert row[2] == "SEND_OK"
    assert header == ["#Broker", "Name", "#QID", "#Send", "Result", "#MsgId"]


def test_groups_are_created_changed_and_deleted(cluster: GoldenCluster) -> None:
    made = cluster.json("updateSubGroup -c DefaultCluster -g Made -r 3")[cluster.broker]
    assert (made["retryMaxTimes"], made["consumeEnable"]) == (3, True)
    cluster.done(f"updateSubGroup -b {cluster.broker} -g Made -s false")
    (entry,) = cluster.json("getConsumerConfig -g Made")
    assert (entry["config"]["retryMaxTimes"], entry["config"]["consumeEnable"]) == (3, False), "the rest stays"
    assert ["retryMaxTimes", "=", "3"] in cluster.rows("getConsumerConfig -g Made")
    assert cluster.admin("deleteSubGroup -c DefaultCluster -g Made", "\n").exit_code == 1
    assert cluster.json("deleteSubGroup -c DefaultCluster -g Made --yes")["brokerAddrs"] == [cluster.broker]
    assert cluster.admin("getConsumerConfig -g Made").exit_code == 1


def test_deleting_a_group_removes_its_topics_and_offsets(cluster: GoldenCluster) -> None:
    assert "%RETRY%G_g_lite" in cluster.json("topicList")
    cluster.done("deleteSubGroup -c DefaultCluster -g G_g_lite -r true --yes")
    assert "%RETRY%G_g_lite" not in cluster.json("topicList")
    assert "there is no consumer group G_g_lite" in cluster.admin("consumerProgress -g G_g_lite").stderr
    assert cluster.admin("deleteSubGroup -c DefaultCluster -g G_g_lite --yes").exit_code == 1, "it is gone"


def test_offsets_of_an_offline_group_are_reset(cluster: GoldenCluster) -> None:
    """Back to the beginning, forward only with force, to a time between messages, and to the end."""

    def places() -> list[int]:
        return [queue["consumerOffset"] for queue in cluster.json("consumerProgress -g G_g_tag -t GA")["queues"]]

    at_first = places()
    back = cluster.json("resetOffsetByTime -g G_g_tag -t GA -s 0 --yes")
    assert (back["online"], [queue["offset"] for queue in back["queues"]]) == (False, [0, 0, 0, 0])
    assert places() == [0, 0, 0, 0]
    cluster.done("cloneGroupOffset -s G_g_tag -d G_clone -t GA -o true --yes")
    assert [queue["consumerOffset"] for queue in cluster.json("consumerProgress -g G_clone")["queues"]] == [0, 0, 0, 0]
    cluster.done("resetOffsetByTime -g G_g_tag -t GA -s now -f false --yes")
    assert places() == [0, 0, 0, 0], "without force nothing goes forward"
    message = cluster.json("queryMsgByOffset -t GA -b broker-a -i 0 -o 20")[0]
    cluster.done(f"resetOffsetByTime -g G_g_tag -t GA -s {message['storeTimestamp']} --yes")
    assert all(0 < place < 34 for place in places())
    cluster.done("resetOffsetByTime -g G_g_tag -t GA -s now --yes")
    assert cluster.json("consumerProgress -g G_g_tag -t GA")["diffTotal"] == 0
    cluster.done("resetOffsetByTime -g G_g_tag -t GA -s 0 --yes")
    skipped = cluster.admin("skipAccumulatedMessage -g G_g_tag -t GA --yes")
    assert "no clients" in skipped.stderr
    assert cluster.json("consumerProgress -g G_g_tag -t GA")["diffTotal"] == 0
    assert places() != at_first
    assert cluster.admin("skipAccumulatedMessage -g G_g_tag -t GA", "").exit_code == 1, "the prompt was not answered"


def test_offsets_are_reset_to_a_number(cluster: GoldenCluster) -> None:
    moved = cluster.json("resetOffset -g G_g_tag -t GA -b broker-a -q 2 -o 7 --yes")
    assert (moved["online"], [(queue["queueId"], queue["offset"]) for queue in moved["queues"]]) == (False, [(2, 7)])
    assert cluster.json("consumerProgress -g G_g_tag -t GA")["queues"][2]["consumerOffset"] == 7
    assert cluster.rows("resetOffset -g G_g_tag -t GA -b broker-a -q 2 -o 8 --yes")[1] == ["broker-a", "2", "8"]
    assert cluster.admin("resetOffset -g G_g_tag -t GA -b broker-a -q 2 -o 9", "n\n").exit_code == 1
    assert cluster.json("consumerProgress -g G_g_tag -t GA")["queues"][2]["consumerOffset"] == 8


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


@pytest.mark.parametrize(("flags", "bits"), [("", 0), ("-u true", 1), ("-s true", 2), ("-u true -s true", 3)])
def test_update_topic_sets_unit_flags(cluster: GoldenCluster, flags: str, bits: int) -> None:
    config = cluster.json(f"updateTopic -b {cluster.broker} -t Unit {flags}")["topicConfig"]
    (queues,) = cluster.json("topicRoute -t Unit")["queueDatas"]
    assert config["topicSysFlag"] == queues["topicSysFlag"] == bits


def test_configurations_are_changed(cluster: GoldenCluster) -> None:
    cluster.done(f"updateBrokerConfig -b {cluster.broker} -k maxMessageSize -v 100")
    assert cluster.json("getBrokerConfig -c DefaultCluster")[cluster.broker]["maxMessageSize"] == "100"
    assert cluster.admin("updateBrokerConfig -c DefaultCluster -k maxMessageSize -v 7 -e 99").exit_code == 1
    assert cluster.json("getBrokerConfig -c DefaultCluster")[cluster.broker]["maxMessageSize"] == "100"
    cluster.done(f"updateBrokerConfig -b {cluster.broker} -k maxMessageSize -v 100 -e 100")
    too_large = cluster.admin(f"sendMessage -t GA -p {'x' * 101}")
    assert too_large.exit_code == 1
    assert "100" in too_large.stderr
    assert cluster.json("updateBrokerConfig -c DefaultCluster -k maxMessageSize -v 4194304")["brokerAddrs"]
    cluster.done("updateNamesrvConfig -k orderMessageEnable -v true")
    (namesrv,) = cluster.json("getNamesrvConfig").values()
    assert namesrv["orderMessageEnable"] == "true"
    assert cluster.json("updateNamesrvConfig -k orderMessageEnable -v false") == {"orderMessageEnable": "false"}


def test_kv_config_commands_change_the_name_servers_table(cluster: GoldenCluster) -> None:
    assert cluster.json("updateKvConfig -s N -k K -v V") == {"namespace": "N", "key": "K", "value": "V"}
    assert cluster.admin("deleteKvConfig -s N -k K", "n\n").exit_code == 1
    cluster.done("deleteKvConfig -s N -k K --yes")
    assert cluster.admin("deleteKvConfig -s N -k K --yes").exit_code == 1
    cluster.done("updateOrderConf -t GOrder -m put -v 'broker-a:4'")
    assert cluster.json("updateOrderConf -t GOrder -m get")["orderConf"] == {"broker-a": 4}
    assert "orderConf=[broker-a:4]" in cluster.done("updateOrderConf -t GOrder -m get")
    cluster.done("updateOrderConf -t GOrder -m delete")
    assert cluster.admin("updateOrderConf -t GOrder -m get").exit_code == 1


def test_wipe_write_perm_stops_sends_until_it_is_restored(cluster: GoldenCluster) -> None:
    (count,) = cluster.json("wipeWritePerm -b broker-a --yes").values()
    assert count > 10
    assert cluster.json("topicRoute -t GA")["queueDatas"][0]["perm"] == 4
    assert cluster.done("addWritePerm -b broker-a").startswith("add write perm of broker[broker-a] in name server[")
    assert cluster.json("topicRoute -t GA")["queueDatas"][0]["perm"] == 6


@pytest.mark.parametrize("command", ["cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog --yes"])
def test_cleaning_commands_report_each_broker(cluster: GoldenCluster, command: str) -> None:
    assert cluster.json(f"{command} -b {cluster.broker}")["brokerAddrs"] == [cluster.broker]
    assert cluster.json(command)["brokerAddrs"] == [cluster.broker]
    assert cluster.rows(f"{command} -c DefaultCluster") == [[cluster.broker, "success"]]


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


def test_a_topic_with_fewer_queues_is_reported_at_once_and_by_doctor(cluster: GoldenCluster) -> None:
    cluster.done("updateTopic -c DefaultCluster -t Shrinks -r 4 -w 4")
    cluster.done("sendMessage -t Shrinks -p x -b broker-a -i 3")
    changed = cluster.json("updateTopic -c DefaultCluster -t Shrinks -r 2 -w 2")
    (finding,) = changed["findings"]
    assert (finding["reason"], finding["subject"]) == ("QUEUE_NOT_READ", "Shrinks:3")
    assert finding["fields"] == {"topic": "Shrinks", "queueId": 3, "messages": 1, "readQueueNums": 2}
    warned = cluster.admin("updateTopic -c DefaultCluster -t Shrinks -r 2 -w 3")
    assert [word in warned.stderr for word in ("QUEUE_NOT_READ", "FEWER_READ_QUEUES")] == [True, True]
    report = cluster.admin("doctor --json")
    assert report.exit_code == 1
    assert '"Shrinks:3"' in report.stdout
    assert "FEWER_READ_QUEUES" in cluster.admin("doctor").stdout
    restored = cluster.admin("updateTopic -c DefaultCluster -t Shrinks -r 4 -w 4")
    assert (restored.exit_code, restored.stderr) == (0, "")


def test_what_is_no_discarded_transaction_is_not_resumed(cluster: GoldenCluster) -> None:
    sent = cluster.json("sendMessage -t GA -p hello -b broker-a -i 3")
    refused = cluster.admin(f"resumeCheckHalfMessage -i {sent['offsetMsgId']}")
    assert refused.exit_code == 1
    assert sent["msgId"] in refused.stderr
    assert "GA" in refused.stderr
