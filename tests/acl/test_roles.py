"""Roles under access control: who may see and change them, and what the audit logs of both brokers say of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rucola.admin import AdminClient
from rucola.broker.broker import Broker
from rucola.client import BrokerError, Message, Producer
from rucola.domain.topic import TopicConfig
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import Header, RemotingCommand
from rucola.protocol.promise import AskPromiseRequestHeader
from rucola.protocol.roles import (
    DemoteBrokerRequestHeader,
    HaStatusRequestHeader,
    PromoteBrokerRequestHeader,
    SwitchOverRequestHeader,
)
from rucola.remoting.client import RemotingClient
from rucola.store.config import BrokerRole
from rucola.store.tools.check import check
from support.access import ADMIN, WRITER, GuardedCluster, guarded_cluster
from support.errors import raises
from support.replication import follows


@asynccontextmanager
async def guarded_pair(path: Path) -> AsyncIterator[tuple[GuardedCluster, Broker, Broker]]:
    """A master and its slave with access control and audit logs; the slave has everything."""
    async with guarded_cluster(path) as cluster:
        stores = {"first": {"broker_role": BrokerRole.SYNC_MASTER}, "second": {"broker_role": BrokerRole.SLAVE}}
        first, second = [
            await cluster.start_broker(
                name, store=store, broker_id=number, audit_log_path=path / f"{name}-audit.jsonl"
            )
            for number, (name, store) in enumerate(stores.items())
        ]  # fmt: skip
        async with AdminClient(cluster.namesrv, credentials=ADMIN) as admin:
            await admin.topics.create_or_update(first.address, TopicConfig(topic_name="Orders"))
        async with Producer("writers", cluster.namesrv, credentials=WRITER) as producer:
            await producer.send(Message("Orders", b"one"))
        await follows(first, second)
        yield cluster, first, second
    for name in stores:
        assert check(path / name) == []


def audited(path: Path, broker: str) -> list[tuple[object, ...]]:
    """User, request, action and outcome of each line about a role."""
    lines = [json.loads(line) for line in (path / f"{broker}-audit.jsonl").read_text().splitlines()]
    codes = ("GET_HA_STATUS", "PROMOTE_BROKER", "DEMOTE_BROKER", "SWITCH_OVER", "ASK_PROMISE")
    return [
        (line["user"], line["request"], line["action"], line["outcome"])
        for line in lines
        if line["request"].startswith(codes)
    ]


REQUESTS: dict[RequestCode, tuple[Header, str]] = {
    RequestCode.GET_HA_STATUS: (HaStatusRequestHeader(), "QUERY"),
    RequestCode.PROMOTE_BROKER: (PromoteBrokerRequestHeader(epoch=9, force=True), "ALTER_ROLE"),
    RequestCode.DEMOTE_BROKER: (DemoteBrokerRequestHeader(broker_id=1), "ALTER_ROLE"),
    RequestCode.SWITCH_OVER: (SwitchOverRequestHeader(target_addr="127.0.0.1:1", target_id=1), "ALTER_ROLE"),
    RequestCode.ASK_PROMISE: (
        AskPromiseRequestHeader(epoch=9, member=1, address="127.0.0.1:1", ha_address="127.0.0.1:2"),
        "REPLICATE",
    ),
}


async def test_an_account_without_rights_on_the_cluster_is_denied(tmp_path: Path) -> None:
    async with guarded_pair(tmp_path) as (_, *brokers):
        before = [(broker.store_config.broker_role, broker.role.position()) for broker in brokers]
        for credentials in (WRITER, None):
            client = RemotingClient(credentials=credentials)
            for broker in brokers:
                for code, (header, _) in REQUESTS.items():
                    response = await client.invoke(broker.address, RemotingCommand.request(code, header))
                    assert response.code == ResponseCode.NO_PERMISSION, (credentials, response)
            await client.close()
        assert [(broker.store_config.broker_role, broker.role.position()) for broker in brokers] == before
    expected = [
        (user, f"{code.name} {int(code)}", action, "denied")
        for user in ("writer1", None)
        for code, (_, action) in REQUESTS.items()
    ]
    assert audited(tmp_path, "first") == audited(tmp_path, "second") == expected


@pytest.mark.slow
async def test_an_admin_changes_the_roles_and_is_in_the_audit_logs(tmp_path: Path) -> None:
    """A switchover, a promotion back by force, which demotes the master, and a request that is refused."""
    async with (
        guarded_pair(tmp_path) as (cluster, first, second),
        AdminClient(cluster.namesrv, credentials=ADMIN) as admin,
    ):
        assert (await admin.roles.status(first.address)).role == "SYNC_MASTER"
        await admin.roles.switch_over(second.address)
        await follows(second, first)
        await admin.roles.promote(first.address, force=True)
        await follows(first, second)
        header = PromoteBrokerRequestHeader(epoch=9, force=False)
        client = RemotingClient(credentials=ADMIN)
        with raises(BrokerError, code=ResponseCode.SYSTEM_ERROR):
            await client.invoke_ok(first.address, RemotingCommand.request(RequestCode.PROMOTE_BROKER, header))
        await client.close()
    role = "ALTER_ROLE"
    assert audited(tmp_path, "first") == [
        ("operator", "SWITCH_OVER 20004", role, "done"),
        ("operator", "PROMOTE_BROKER 20002", role, "done"),
        ("operator", "PROMOTE_BROKER 20002", role, "failed"),
    ]
    assert audited(tmp_path, "second") == [
        ("operator", "PROMOTE_BROKER 20002", role, "done"),  # by its master, with the keys of the pair
        ("operator", "DEMOTE_BROKER 20003", role, "done"),
    ]
