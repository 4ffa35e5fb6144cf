"""Users and policies of ACL 2.0."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rucola import refusals, settings
from rucola.access import Action, Reason, Refused, Resource
from rucola.acl.credentials import Credentials
from rucola.acl.policies import parse_entry
from rucola.acl.user_store import UserStore
from rucola.admin import AdminClient
from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig, from_properties
from rucola.client import BrokerError, Message, Producer, PullConsumer
from rucola.domain.topic import TopicConfig
from rucola.domain.user import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from rucola.errors import ConfigError
from rucola.protocol.access import UserRequestHeader
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.connections import ConsumeMessageDirectlyRequestHeader
from rucola.remoting.client import RemotingClient
from support.access import signed
from support.cluster import Cluster
from support.cluster import cluster as plain_cluster
from support.errors import raises
from support.remoting_peers import RawPeer

FIRST = '{"username":"root","password":"secret of root"}'
ROOT = Credentials("root", "secret of root")
ALICE = Credentials("alice", "secret of alice")


def store_in(path: Path) -> UserStore:
    return UserStore(path / "auth.json", "DefaultCluster", FIRST)


def policy(*entries: tuple[str, str, str, str], kind: str = "Custom") -> AclInfo:
    """Each entry: resource, actions, source IPs, decision."""
    return AclInfo(
        policies=[
            PolicyInfo(
                policy_type=kind,
                entries=[
                    PolicyEntryInfo(
                        resource=resource, actions=actions.split(","), source_ips=ips.split(",") if ips else None,
                        decision=decision,
                    )
                    for resource, actions, ips, decision in entries
                ],
            )
        ]
    )  # fmt: skip


def with_alice(path: Path) -> UserStore:
    store = store_in(path)
    store.create_user("alice", UserInfo(password="secret of alice"), "root", by_super=True)
    return store


def test_the_first_user_is_super_and_survives_a_restart(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    assert store.current["root"].is_admin
    assert (tmp_path / "auth.json").stat().st_mode & 0o777 == 0o600
    again = UserStore(tmp_path / "auth.json", "DefaultCluster")
    assert again.current.keys() == {"root"}


def test_without_a_super_user_the_broker_does_not_start(tmp_path: Path) -> None:
    with raises(ConfigError, subject="initAuthenticationUser"):
        UserStore(tmp_path / "auth.json", "DefaultCluster")
    with raises(ConfigError, subject="initAuthenticationUser") as raised:
        UserStore(tmp_path / "auth.json", "DefaultCluster", '{"username":"root","password":hidden')
    assert "hidden" not in str(raised.value)
    (tmp_path / "auth.json").write_text('{"users":[{"username":"root","userType":"Super"}]}')
    with raises(ConfigError, subject=str(tmp_path / "auth.json")):
        store_in(tmp_path)
    (tmp_path / "auth.json").write_text("{")
    with raises(ConfigError, subject=str(tmp_path / "auth.json")):
        store_in(tmp_path)


@pytest.mark.parametrize(
    ("entries", "action", "resource", "host", "allowed"),
    [
        ([], Action.PUBLISH, Resource("Orders"), "10.0.0.1", False),
        ([("Topic:Orders", "Pub", "", "Allow")], Action.PUBLISH, Resource("Orders"), "10.0.0.1", True),
        ([("Topic:Orders", "Pub", "", "Allow")], Action.PUBLISH, Resource("Orders2"), "10.0.0.1", False),
        ([("Topic:Orders", "Sub", "", "Allow")], Action.PUBLISH, Resource("Orders"), "10.0.0.1", False),
        ([("Topic:Ord*", "Pub", "", "Allow")], Action.PUBLISH, Resource("Orders"), "10.0.0.1", True),
        ([("Topic:*", "All", "", "Allow")], Action.PUBLISH, Resource("Orders"), "10.0.0.1", True),
        ([("*", "All", "", "Allow")], Action.ALTER_CONFIG, Resource(), "10.0.0.1", True),
        ([("Cluster:DefaultCluster", "Update", "", "Allow")], Action.ALTER_CONFIG, Resource(), "10.0.0.1", True),
        ([("Cluster:Other", "Update", "", "Allow")], Action.ALTER_CONFIG, Resource(), "10.0.0.1", False),
        ([("Topic:Orders", "Pub", "10.0.0.0/8", "Allow")], Action.PUBLISH, Resource("Orders"), "10.9.9.9", True),
        ([("Topic:Orders", "Pub", "10.0.0.0/8", "Allow")], Action.PUBLISH, Resource("Orders"), "11.0.0.1", False),
        # The most specific resource decides, and of two equal ones Deny.
        ([("Topic:*", "Pub", "", "Allow"), ("Topic:Orders", "Pub", "", "Deny")], Action.PUBLISH, Resource("Orders"),
         "10.0.0.1", False),
        ([("Topic:*", "Pub", "", "Deny"), ("Topic:Orders", "Pub", "", "Allow")], Action.PUBLISH, Resource("Orders"),
         "10.0.0.1", True),
        ([("Topic:O*", "Pub", "", "Deny"), ("Topic:Ord*", "Pub", "", "Allow")], Action.PUBLISH, Resource("Orders"),
         "10.0.0.1", True),
        ([("Topic:Orders", "Sub", "", "Allow"), ("Group:g", "Sub", "", "Allow")], Action.FETCH,
         Resource("Orders", "g"), "10.0.0.1", True),
        ([("Topic:Orders", "Sub", "", "Allow")], Action.FETCH, Resource("Orders", "g"), "10.0.0.1", False),
        ([("Group:g", "Sub", "", "Allow")], Action.FETCH, Resource("%RETRY%g", "g"), "10.0.0.1", True),
        ([("Topic:Orders", "Create", "", "Allow")], Action.ALTER_TOPIC, Resource("Orders"), "10.0.0.1", True),
        ([("Topic:Orders", "Create", "", "Allow")], Action.DELETE_TOPIC, Resource("Orders"), "10.0.0.1", False),
    ],
)  # fmt: skip
def test_policies_decide(
    tmp_path: Path,
    entries: list[tuple[str, str, str, str]],
    action: Action,
    resource: Resource,
    host: str,
    allowed: bool,
) -> None:
    store = with_alice(tmp_path)
    if entries:
        store.set_policies("User:alice", policy(*entries))
    store = UserStore(tmp_path / "auth.json", "DefaultCluster")  # the same after a restart
    if allowed:
        store.current["alice"].check(action, resource, host)
    else:
        with raises(Refused, reason=Reason.DENIED):
            store.current["alice"].check(action, resource, host)


def test_the_default_policy_counts_if_the_custom_one_does_not_match(tmp_path: Path) -> None:
    store = with_alice(tmp_path)
    store.set_policies("User:alice", policy(("Topic:*", "Pub", "", "Allow"), kind="Default"))
    store.set_policies("User:alice", policy(("Topic:Secret", "Pub", "", "Deny")))
    store.current["alice"].check(Action.PUBLISH, Resource("Orders"), "10.0.0.1")
    with raises(Refused, reason=Reason.DENIED):
        store.current["alice"].check(Action.PUBLISH, Resource("Secret"), "10.0.0.1")


def test_policies_are_replaced_listed_and_deleted_by_resource(tmp_path: Path) -> None:
    store = with_alice(tmp_path)
    store.set_policies("User:alice", policy(("Topic:A", "Pub", "", "Allow"), ("Topic:B", "Pub", "", "Allow")))
    store.set_policies("User:alice", policy(("Topic:A", "Sub", "", "Deny")))
    (acl,) = store.all_policies("alice", "Topic:A")
    assert [(entry.resource, entry.actions, entry.decision) for entry in acl.policies[0].entries] == [
        ("Topic:A", ["Sub"], "Deny")
    ]
    store.delete_policies("User:alice", None, "Topic:A")
    found = store.policies("User:alice")
    assert found is not None
    assert [entry.resource for entry in found.policies[0].entries] == ["Topic:B"]
    store.delete_policies("User:alice", None, None)
    assert store.policies("User:alice") is None
    with raises(Refused, refusal=refusals.NO_USER, user="bob"):
        store.set_policies("User:bob", policy(("Topic:A", "Pub", "", "Allow")))


def test_the_last_super_user_stays(tmp_path: Path) -> None:
    store = with_alice(tmp_path)
    for change in (UserInfo(user_type="Normal"), UserInfo(user_status="disable")):
        with raises(Refused, refusal=refusals.LAST_SUPER_USER):
            store.update_user("root", change, "root", by_super=True)
    with raises(Refused, refusal=refusals.LAST_SUPER_USER):
        store.delete_user("root", "root", by_super=True)
    store.update_user("alice", UserInfo(user_type="Super"), "root", by_super=True)
    store.delete_user("root", "alice", by_super=True)
    assert store.current["alice"].is_admin


def test_only_super_users_change_super_users(tmp_path: Path) -> None:
    store = with_alice(tmp_path)
    for change in (
        lambda: store.create_user("eve", UserInfo(password="p", user_type="Super"), "alice", by_super=False),
        lambda: store.update_user("root", UserInfo(password="mine"), "alice", by_super=False),
        lambda: store.update_user("alice", UserInfo(user_type="Super"), "alice", by_super=False),
        lambda: store.delete_user("root", "alice", by_super=False),
    ):
        with raises(Refused, refusal=refusals.NO_SUPER_USER, user="alice"):
            change()


@pytest.mark.parametrize(
    ("resource", "actions", "ips", "decision"),
    [
        ("Orders", ["Pub"], [], "Allow"),
        ("Topic:a*b", ["Pub"], [], "Allow"),
        ("Topic:a", [], [], "Allow"),
        ("Topic:a", ["Any"], [], "Allow"),
        ("Topic:a", ["Pub"], ["10.0.0"], "Allow"),
        ("Topic:a", ["Pub"], [], "Perhaps"),
    ],
)
def test_what_is_no_policy_is_an_error(resource: str, actions: list[str], ips: list[str], decision: str) -> None:
    with pytest.raises(ConfigError):
        parse_entry(resource, actions, ips, decision)


@asynccontextmanager
async def with_users(path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Cluster, Broker, AdminClient]]:
    """A broker with the users root and alice, who has no policy yet, and an AdminClient of root."""
    monkeypatch.setenv("ROCKETMQ_INIT_AUTHENTICATION_USER", FIRST)
    async with plain_cluster(path) as cluster:
        broker = await cluster.start_broker(authentication_enabled=True, authorization_enabled=True)
        async with AdminClient(cluster.namesrv, credentials=ROOT) as admin:
            await admin.access.create_user(broker.address, "alice", "secret of alice")
            yield cluster, broker, admin


@pytest.mark.parametrize("source", ["file:{path}", "env:FIRST_USER_OF_A_TEST", FIRST])
async def test_the_first_user_is_a_secret(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "first-user").write_text(FIRST + "\n")
    monkeypatch.setenv("FIRST_USER_OF_A_TEST", FIRST)
    conf = {
        "authenticationEnabled": "true",
        "initAuthenticationUser": source.replace("{path}", str(tmp_path / "first-user")),
    }
    config, _, _ = from_properties(conf)
    assert "root" not in repr(config)
    assert "initAuthenticationUser" not in settings.to_properties(config)
    async with plain_cluster(tmp_path / "cluster") as cluster:
        broker = await cluster.start_broker(**settings.changes(BrokerConfig, conf))
        async with AdminClient(cluster.namesrv, credentials=ROOT) as admin:
            assert [user.username for user in await admin.access.users(broker.address)] == ["root"]


def test_both_versions_together_are_refused() -> None:
    with raises(ConfigError, subject="authenticationEnabled"):
        from_properties({"aclEnable": "true", "authenticationEnabled": "true"})
    with raises(ConfigError, subject="authorizationEnabled"):
        from_properties({"authorizationEnabled": "true"})


async def test_a_message_is_sent_to_a_client_on_behalf_of_users_who_may_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may call the clients of a group can have them consume a message, which must not be one of any topic."""
    async with with_users(tmp_path, monkeypatch) as (cluster, broker, admin):
        await admin.topics.create_or_update(broker.address, TopicConfig(topic_name="Salaries"))
        entry = PolicyEntryInfo(actions=["Update"], decision="Allow")
        await admin.access.set_policies(broker.address, "User:alice", ["Group:g"], entry)
        async with Producer("p", cluster.namesrv, credentials=ROOT) as producer:
            sent = await producer.send(Message("Salaries", b"secret"))
        header = ConsumeMessageDirectlyRequestHeader(consumer_group="g", client_id="c", msg_id=sent.offset_msg_id)
        request = RemotingCommand.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
        # Nobody is connected, which only a user who may read the message is told.
        for keys, expected in ((ALICE, ResponseCode.NO_PERMISSION), (ROOT, ResponseCode.SYSTEM_ERROR)):
            client = RemotingClient(credentials=keys)
            assert (await client.invoke(broker.address, request)).code == expected
            await client.close()


async def test_requests_of_two_users_in_one_read_keep_their_own_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Normal user who may change users sends a captured request of a Super user right behind its own."""
    async with with_users(tmp_path, monkeypatch) as (_, broker, admin):
        entry = PolicyEntryInfo(actions=["Update", "Get"], decision="Allow")
        await admin.access.set_policies(broker.address, "User:alice", ["Cluster:*"], entry)
        attempts = [
            (RequestCode.AUTH_CREATE_USER, "mallory", UserInfo(password="of mallory", user_type="Super")),
            (RequestCode.AUTH_UPDATE_USER, "alice", UserInfo(user_type="Super")),
            (RequestCode.AUTH_UPDATE_USER, "root", UserInfo(password="of mallory")),
        ]
        frames, captured = b"", signed(ROOT, RequestCode.GET_BROKER_CONFIG).encode()
        for code, name, user in attempts:
            frames += signed(ALICE, code, UserRequestHeader(username=name), encode_body(user)).encode() + captured
        peer = await RawPeer.at(broker.config.listen_port)
        await peer.send(frames)
        codes = sorted(answer.code for answer in await peer.commands(2 * len(attempts)))
        await peer.close()
        assert codes == [ResponseCode.SUCCESS] * 3 + [ResponseCode.NO_PERMISSION] * 3
        users = await admin.access.users(broker.address)
        assert {user.username: user.user_type for user in users} == {"root": "Super", "alice": "Normal"}
    denied = [json.loads(line) for line in (tmp_path / "broker-a" / "audit" / "audit.jsonl").read_text().splitlines()]
    assert [line["user"] for line in denied if line["outcome"] == "denied"] == ["alice"] * 3


async def test_users_and_policies_over_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with with_users(tmp_path, monkeypatch) as (cluster, broker, admin):
        await admin.topics.create_or_update(broker.address, TopicConfig(topic_name="Orders"))
        async with Producer("p", cluster.namesrv, credentials=ALICE, retry_times=0) as producer:
            with raises(BrokerError, code=ResponseCode.NO_PERMISSION):
                await producer.send(Message("Orders", b"one"), (await producer.queues("Orders"))[0])
            entry = PolicyEntryInfo(actions=["Pub"], decision="Allow")
            await admin.access.set_policies(broker.address, "User:alice", ["Topic:Orders"], entry)
            await producer.send(Message("Orders", b"two"))
        async with PullConsumer("g", cluster.namesrv, credentials=ALICE) as consumer:
            with raises(BrokerError, code=ResponseCode.NO_PERMISSION):
                await consumer.pull((await consumer.queues("Orders"))[0], 0)
        found = await admin.access.user(broker.address, "alice")
        assert found is not None
        assert (found.user_type, found.user_status, found.password) == ("Normal", "enable", None)
        assert [user.username for user in await admin.access.users(broker.address, "ali")] == ["alice"]
        acl = await admin.access.policies(broker.address, "User:alice")
        assert acl is not None
        assert acl.policies[0].entries[0].resource == "Topic:Orders"
        assert len(await admin.access.all_policies(broker.address)) == 1
        await admin.access.update_user(broker.address, "alice", UserInfo(user_status="disable"))
        async with Producer("p", cluster.namesrv, credentials=ALICE, retry_times=0) as producer:
            with raises(BrokerError, code=ResponseCode.NO_PERMISSION):
                await producer.send(Message("Orders", b"three"), (await producer.queues("Orders"))[0])
        await admin.access.delete_policies(broker.address, "User:alice", "Topic:Orders")
        assert await admin.access.policies(broker.address, "User:alice") is None
        await admin.access.delete_user(broker.address, "alice")
        assert await admin.access.user(broker.address, "alice") is None
        with raises(BrokerError, code=ResponseCode.SYSTEM_ERROR):
            await admin.access.versions(broker.address)
        config = await admin.brokers.config(broker.address)
        assert "secret" not in json.dumps(config)
    lines = (tmp_path / "broker-a" / "audit" / "audit.jsonl").read_text()
    assert "secret of" not in lines
