"""What defaults and patterns do not give: topics that hold messages of others, in both versions of ACL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rucola.access import Action, Reason, Refused, Resource
from rucola.acl.plain_acl import parse_file
from rucola.acl.policies import PolicyUser, UserStatus, UserType, parse_entry
from rucola.acl.principal import Principal
from rucola.message.topics import SYSTEM_TOPICS, TRACE_TOPIC, dlq_topic, reply_topic, retry_topic

HOST = "10.0.0.1"
OF_OTHERS = [
    "SCHEDULE_TOPIC_XXXX",
    "rmq_sys_wheel_timer",
    "rmq_sys_pop_log",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    TRACE_TOPIC,
    reply_topic("DefaultCluster"),
]
READING = [(Action.FETCH, "g"), (Action.READ, "")]


def plain(**members: object) -> Principal:
    account = {"accessKey": "account1", "secretKey": "secret of it", **members}
    return parse_file({"accounts": [account]}, Path("plain_acl.yml")).accounts["account1"]


def with_policies(*resources: str) -> Principal:
    entries = [parse_entry(resource, ["All"], [], "Allow") for resource in resources]
    return PolicyUser("user", "secret", UserType.NORMAL, UserStatus.ENABLE, {"Custom": entries}, "DefaultCluster")


def may(user: Principal, action: Action, topic: str, group: str = "") -> bool:
    try:
        user.check(action, Resource(topic, group), HOST)
    except Refused as refused:
        return refused.reason is not Reason.DENIED
    return True


EVERYTHING = {
    "1.0": lambda: plain(defaultTopicPerm="PUB|SUB", defaultGroupPerm="PUB|SUB"),
    "2.0, Topic:*": lambda: with_policies("Topic:*", "Group:*"),
    "2.0, *": lambda: with_policies("*"),
    "2.0, prefixes": lambda: with_policies("Group:*", *(f"Topic:{topic[:-1]}*" for topic in (*OF_OTHERS, "Any"))),
}


@pytest.mark.parametrize("everything", EVERYTHING.values(), ids=EVERYTHING.keys())
def test_topics_with_messages_of_others_match_no_default_and_no_pattern(everything: Callable[[], Principal]) -> None:
    user = everything()
    assert set(OF_OTHERS) - {reply_topic("DefaultCluster")} <= SYSTEM_TOPICS
    for action, group in READING:
        assert may(user, action, "Any", group)
        assert [topic for topic in OF_OTHERS if may(user, action, topic, group)] == []
    # Clients send traces and replies without permissions for these topics.
    sent = {topic for topic in OF_OTHERS if may(user, Action.PUBLISH, topic)}
    assert sent == {TRACE_TOPIC, reply_topic("DefaultCluster")}


@pytest.mark.parametrize("topic", OF_OTHERS)
def test_a_permission_that_names_such_a_topic_counts(topic: str) -> None:
    named = plain(topicPerms=[f"{topic}=SUB"], groupPerms=["g=SUB"]), with_policies(f"Topic:{topic}", "Group:g")
    for user in named:
        assert [may(user, action, topic, group) for action, group in READING] == [True, True]


@pytest.mark.parametrize("topic_of", [retry_topic, dlq_topic])
def test_retries_and_dead_letters_are_those_of_the_group(topic_of: Callable[[str], str]) -> None:
    topic = topic_of("theirs")
    topics_only = plain(defaultTopicPerm="PUB|SUB", groupPerms=["g=SUB"]), with_policies("Topic:*", "Group:g")
    for user in topics_only:
        assert [may(user, action, topic, group) for action, group in READING] == [False, False]
        assert not may(user, Action.PUBLISH, topic)
    of_group = plain(groupPerms=["theirs=SUB", "g=SUB"]), with_policies("Group:theirs", "Group:g")
    for user in of_group:
        assert may(user, Action.FETCH, topic, "g")
