"""docs/mqadmin.md lists which commands of mqadmin are implemented, in agreement with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rucola.cli.admin import admin

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "mqadmin.md"
FLAGS = """
updateTopic b:brokerAddr c:clusterName t:topic r:readQueueNums w:writeQueueNums p:perm o:order u:unit s:hasUnitSub
deleteTopic t:topic c:clusterName
updateSubGroup b:brokerAddr c:clusterName g:groupName s:consumeEnable m:consumeFromMinEnable
    d:consumeBroadcastEnable q:retryQueueNums r:retryMaxTimes i:brokerId w:whichBrokerWhenConsumeSlowly
    a:notifyConsumerIdsChanged
deleteSubGroup b:brokerAddr c:clusterName g:groupName r:removeOffset
updateBrokerConfig b:brokerAddr c:clusterName k:key v:value
updateTopicPerm b:brokerAddr c:clusterName t:topic p:perm
topicRoute t:topic l:list
topicStatus t:topic
topicClusterList t:topic
brokerStatus b:brokerAddr c:clusterName
queryMsgById i:msgId g:consumerGroup d:clientId s:sendMessage u:unitName
queryMsgByKey t:topic k:msgKey
queryMsgByUniqueKey i:msgId g:consumerGroup d:clientId t:topic a:showAll
queryMsgByOffset t:topic b:brokerName i:queueId o:offset
queryMsgTraceById i:msgId t:traceTopic
printMsg t:topic c:charsetName s:subExpression b:beginTimestamp e:endTimestamp d:printBody
printMsgByQueue t:topic a:brokerName i:queueId c:charsetName s:subExpression b:beginTimestamp e:endTimestamp
    p:print-msg d:printBody f:calculate
sendMsgStatus b:brokerName s:messageSize c:count
brokerConsumeStats b:brokerAddr t:timeoutMillis l:level o:order
producerConnection g:producerGroup t:topic
consumerConnection g:consumerGroup b:brokerAddr
consumerProgress g:groupName s:showClientIP
consumerStatus g:consumerGroup i:clientId b:brokerAddr s:jstack
cloneGroupOffset s:srcGroup d:destGroup t:topic o:offline
producer b:broker
clusterList m:moreStats i:interval
topicList c:clusterModel
updateKvConfig s:namespace k:key v:value
deleteKvConfig s:namespace k:key
wipeWritePerm b:brokerName
addWritePerm b:brokerName
resetOffsetByTime g:group t:topic s:timestamp f:force c:cplus
skipAccumulatedMessage g:group t:topic f:force
updateOrderConf t:topic v:orderConf m:method
cleanExpiredCQ b:brokerAddr c:cluster
deleteExpiredCommitLog b:brokerAddr c:cluster
cleanUnusedTopic b:brokerAddr c:cluster
startMonitoring
statsAll a:activeTopic t:topic
allocateMQ t:topic i:ipList
checkMsgSendRT t:topic a:amount s:size
clusterRT a:amount s:size c:cluster p:print-log m:machine-room i:interval
getNamesrvConfig
updateNamesrvConfig k:key v:value
getBrokerConfig b:brokerAddr c:clusterName
getConsumerConfig g:groupName
queryCq t:topic q:queue i:index c:count b:broker g:consumer
sendMessage t:topic p:body k:key c:tags b:broker i:qid m:msgTraceEnable
consumeMessage t:topic b:brokerName i:queueId o:offset g:consumerGroup s:beginTimestamp e:endTimestamp
    c:MessageNumber
updateAclConfig b:brokerAddr c:clusterName a:accessKey s:secretKey w:whiteRemoteAddress i:defaultTopicPerm
    u:defaultGroupPerm t:topicPerms g:groupPerms m:admin
deleteAclConfig b:brokerAddr c:clusterName a:accessKey
clusterAclConfigVersion b:brokerAddr c:clusterName
updateGlobalWhiteAddr b:brokerAddr c:clusterName g:globalWhiteRemoteAddresses p:aclFileFullPath
exportMetadata c:clusterName b:brokerAddr f:filePath t:topic g:subscriptionGroup s:specialTopic
exportConfigs c:clusterName f:filePath
exportMetrics c:clusterName f:filePath
"""
"""The commands of mqadmin with their short and long flags; all of them have -n and -h, too."""
MQADMIN = {name: flags for name, *flags in map(str.split, FLAGS.replace("\n    ", " ").strip().splitlines())}
NOT_TO_BE_WRITTEN = {"print-log", "print-msg", "machine-room"}
"""Long names that contain a space in mqadmin, and so cannot be typed."""
LEFT_OUT = {("queryMsgById", "u")}


def tables() -> tuple[set[str], set[str]]:
    """Return the commands of mqadmin, and other commands."""
    supported, additional = DOCUMENT.read_text(encoding="utf-8").split("\n## Additional commands\n")
    return commands_of(supported), commands_of(additional)


def commands_of(text: str) -> set[str]:
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_the_tables_equal_the_commands() -> None:
    supported, additional = tables()
    assert supported | additional == set(admin.commands)
    assert supported & additional == set()


@pytest.mark.parametrize("name", [name for name in MQADMIN if name in admin.commands])
def test_every_flag_of_mqadmin_is_accepted(name: str) -> None:
    taken = {text for option in admin.commands[name].params for text in option.opts}
    for short, _, long in (flag.partition(":") for flag in MQADMIN[name]):
        if (name, short) not in LEFT_OUT:
            assert f"-{short}" in taken, short
            assert f"--{long}" in taken or long in NOT_TO_BE_WRITTEN, long


def test_tables_list_every_command_of_mqadmin() -> None:
    supported, _ = tables()
    assert supported == set(MQADMIN)
    assert f"Rucola has all {len(MQADMIN)} commands" in DOCUMENT.read_text(encoding="utf-8")
