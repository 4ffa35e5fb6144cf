"""Permissions of broker, topic and group, checked without a broker: an interceptor needs no connection."""

from __future__ import annotations

from pathlib import Path

import pytest

from rucola.access import Action, Caller, Reason, Refused, Resource
from rucola.broker.config import BrokerConfig
from rucola.broker.interceptors import Permission, SlaveRefusal
from rucola.broker.limits import Limits
from rucola.broker.tables.groups import SubscriptionGroupTable
from rucola.broker.tables.topics import TopicConfigTable
from rucola.domain.group import SubscriptionGroupConfig
from rucola.domain.topic import PERM_READ, PERM_WRITE, TopicConfig
from support.errors import raises

CALLER = Caller("127.0.0.1:4711")
ALL = PERM_READ | PERM_WRITE


def permission(path: Path, broker: int = ALL, topic: int = ALL, consume_enable: bool = True) -> Permission:
    """Permissions with a topic T, a retry topic of the group g with the same permission, and the group g."""
    config = BrokerConfig(broker_permission=broker, broker_ip1="1.2.3.4")
    limits = Limits(config)
    topics = TopicConfigTable(path / "topics.json", config, lambda: None, limits)
    groups = SubscriptionGroupTable(path / "groups.json", config, lambda: None, limits)
    for name in ("T", "%RETRY%g"):
        topics.put(TopicConfig(topic_name=name, perm=topic), 0)
    groups.put(SubscriptionGroupConfig(group_name="g", consume_enable=consume_enable), 0)
    return Permission(config, topics, groups)


def refusal(permission: Permission, action: Action, resource: Resource) -> str | None:
    """The text with which a request is refused; None if it passes."""
    check = permission.check_for(action)
    assert check is not None
    try:
        check(CALLER, resource)
    except Refused as refused:
        return str(refused) if refused.reason is Reason.FORBIDDEN else refused.reason.name
    return None


@pytest.mark.parametrize(
    ("action", "resource", "doing"),
    [
        (Action.PUBLISH, Resource("T"), "sending"),
        (Action.RETRY, Resource("%RETRY%g", "g"), "sending"),
        (Action.FETCH, Resource("T", "g"), "pulling"),
        (Action.RECEIVE, Resource("T", "g"), "pulling"),
    ],
)
def test_broker_and_topic_must_both_allow_an_action(
    tmp_path: Path, action: Action, resource: Resource, doing: str
) -> None:
    bit = PERM_READ if action in (Action.FETCH, Action.RECEIVE) else PERM_WRITE
    by_broker = f"the broker[1.2.3.4] {doing} message is forbidden"
    assert refusal(permission(tmp_path), action, resource) is None
    assert refusal(permission(tmp_path, broker=ALL & ~bit), action, resource) == by_broker
    by_topic = f"the topic[{resource.topic}] {doing} message is forbidden"
    assert refusal(permission(tmp_path, topic=ALL & ~bit), action, resource) == by_topic
    assert refusal(permission(tmp_path, broker=ALL & ~bit, topic=0), action, resource) == by_broker


def test_producers_may_not_send_to_topics_of_the_system(tmp_path: Path) -> None:
    text = "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden."
    assert refusal(permission(tmp_path), Action.PUBLISH, Resource("SCHEDULE_TOPIC_XXXX")) == text


def test_a_refused_send_has_the_region_of_the_broker(tmp_path: Path) -> None:
    with pytest.raises(Refused) as raised:
        permission(tmp_path, topic=PERM_READ).check_publish(CALLER, Resource("T"))
    assert raised.value.details == BrokerConfig().region_fields


def test_a_disabled_group_may_not_pull(tmp_path: Path) -> None:
    text = "subscription group no permission, g"
    assert refusal(permission(tmp_path, consume_enable=False), Action.FETCH, Resource("T", "g")) == text


@pytest.mark.parametrize("action", [Action.PUBLISH, Action.RETRY, Action.FETCH])
def test_a_missing_topic_or_group_passes_to_the_service(tmp_path: Path, action: Action) -> None:
    assert refusal(permission(tmp_path), action, Resource("missing", "missing")) is None


def test_actions_without_permission_bits_are_not_checked(tmp_path: Path) -> None:
    checked = {action for action in Action if permission(tmp_path).check_for(action) is not None}
    assert checked == {Action.PUBLISH, Action.RETRY, Action.FETCH, Action.RECEIVE}


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (Action.PUBLISH, Reason.UNAVAILABLE),
        (Action.RETRY, Reason.UNAVAILABLE),
        (Action.RECEIVE, Reason.UNAVAILABLE),
        (Action.ACKNOWLEDGE, Reason.UNAVAILABLE),
        (Action.END_TRANSACTION, Reason.NOT_MASTER),
        (Action.ALTER_TOPIC, Reason.FAILED),
        (Action.ALTER_GROUP, Reason.FAILED),
    ],
)
@pytest.mark.parametrize(("master", "named"), [("1.2.3.4:10911", "1.2.3.4:10911"), ("", "not known yet")])
def test_a_slave_refuses_changes_and_names_its_master(action: Action, reason: Reason, master: str, named: str) -> None:
    check = SlaveRefusal(lambda: master).check_for(action)
    assert check is not None
    with raises(Refused, reason=reason, master=named):
        check(CALLER, Resource("T", "g"))


@pytest.mark.parametrize("action", [Action.FETCH, Action.QUERY, Action.COMMIT, Action.HEARTBEAT, Action.LOCK])
def test_a_slave_serves_consumers(action: Action) -> None:
    assert SlaveRefusal(lambda: "").check_for(action) is None
