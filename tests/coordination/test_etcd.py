"""The client of etcd against a real one: leases, ranges, transactions, watches, failover and users."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from rucola.coordination.etcd import (
    Compare,
    EtcdAccess,
    EtcdClient,
    EtcdError,
    LeaseNotFound,
    OutcomeUnknown,
    Put,
    parse_endpoints,
)
from rucola.errors import ConfigError
from support.errors import raises
from support.etcd import EtcdServer
from support.ports import free_port
from support.waiting import until

TIMEOUT_S = 60


@pytest.fixture
async def client(shared_etcd: EtcdServer) -> AsyncIterator[EtcdClient]:
    async with EtcdClient(EtcdAccess((shared_etcd.endpoint,)), TIMEOUT_S) as client:
        yield client


async def test_a_transaction_is_carried_out_only_if_nothing_has_changed(client: EtcdClient) -> None:
    first = await client.transact([Compare("/txn/a", 0)], [Put("/txn/a", b"\x00one"), Put("/txn/b", b"")])
    assert first is not None
    assert await client.transact([Compare("/txn/a", 0)], [Put("/txn/a", b"two")]) is None
    found = await client.range("/txn/")
    assert [(item.key, item.value, item.mod_revision, item.lease) for item in found.items] == [
        ("/txn/a", b"\x00one", first, 0),
        ("/txn/b", b"", first, 0),
    ]
    second = await client.transact([Compare("/txn/a", first)], [Put("/txn/a", b"two")])
    assert second is not None
    assert second > first
    assert (await client.range("/other/")).items == ()


async def test_keys_end_with_their_lease(client: EtcdClient) -> None:
    lease, ttl_s = await client.grant(60)
    assert ttl_s == 60
    await client.transact([], [Put("/lease/a", b"x", lease)])
    assert (await client.range("/lease/")).items[0].lease == lease
    assert await client.keep_alive(lease) == 60
    await client.revoke(lease)
    assert (await client.range("/lease/")).items == ()
    with pytest.raises(LeaseNotFound):
        await client.keep_alive(lease)
    with pytest.raises(LeaseNotFound):
        await client.transact([], [Put("/lease/a", b"x", lease)])
    await client.revoke(lease)


async def test_a_watch_tells_of_changes_of_its_keys_alone(client: EtcdClient) -> None:
    watch = client.watch("/watch/", TIMEOUT_S)
    async with asyncio.timeout(TIMEOUT_S):
        await anext(watch)
        change = asyncio.ensure_future(anext(watch))
        await client.transact([], [Put("/watched/", b"another")])
        assert not change.done()
        await client.transact([], [Put("/watch/a", b"x")])
        await change
    await watch.aclose()


async def test_a_watch_of_a_silent_etcd_ends_and_can_be_renewed(own_etcd: EtcdServer) -> None:
    """A connection that a firewall has dropped is silent, too: no later change would ever be told."""
    async with EtcdClient(EtcdAccess((own_etcd.endpoint,)), TIMEOUT_S) as client, asyncio.timeout(TIMEOUT_S):
        watch = client.watch("/silent/", 3)
        await anext(watch)
        own_etcd.signal(signal.SIGSTOP)
        assert [each async for each in watch] == []
        own_etcd.signal(signal.SIGCONT)
        renewed = client.watch("/silent/", TIMEOUT_S)
        await anext(renewed)
        await client.transact([], [Put("/silent/a", b"x")])
        await anext(renewed)
        await renewed.aclose()


async def test_a_client_goes_to_an_endpoint_that_answers(shared_etcd: EtcdServer) -> None:
    endpoints = (f"http://127.0.0.1:{free_port()}", shared_etcd.endpoint)
    async with EtcdClient(EtcdAccess(endpoints), TIMEOUT_S) as client:
        assert await client.transact([], [Put("/failover/a", b"x")]) is not None
        assert len((await client.range("/failover/")).items) == 1


async def answers(client: EtcdClient) -> bool:
    with suppress(EtcdError):
        await client.range("/x/")
        return True
    return False


async def test_every_call_ends_in_time_while_etcd_is_stopped(own_etcd: EtcdServer) -> None:
    async with EtcdClient(EtcdAccess((own_etcd.endpoint,)), 2) as client:
        await until(lambda: answers(client))
        own_etcd.signal(signal.SIGSTOP)
        async with asyncio.timeout(TIMEOUT_S):
            with pytest.raises(EtcdError):
                await client.range("/x/")
            with pytest.raises(OutcomeUnknown):
                await client.transact([], [Put("/x/a", b"x")])
        own_etcd.signal(signal.SIGCONT)
    async with EtcdClient(EtcdAccess((own_etcd.endpoint,)), TIMEOUT_S) as client:
        await client.range("/x/")
        own_etcd.kill()
        own_etcd.start()
        await client.range("/x/")


async def test_a_user_is_authenticated_again_when_its_token_ends(own_etcd: EtcdServer) -> None:
    access = EtcdAccess((own_etcd.endpoint,))
    async with EtcdClient(access, TIMEOUT_S) as admin:
        for path, request in (
            ("/v3/auth/user/add", {"name": "root", "password": "secret"}),
            ("/v3/auth/role/add", {"name": "root"}),
            ("/v3/auth/user/grant", {"user": "root", "role": "root"}),
            ("/v3/auth/enable", {}),
        ):
            await admin._call(path, request)
        with pytest.raises(EtcdError):
            await admin.range("/x/")
    async with EtcdClient(EtcdAccess(access.endpoints, "root", "secret"), TIMEOUT_S) as client:
        await client.range("/x/")
        client._token = "no longer valid"
        assert await client.transact([], [Put("/x/a", b"x")]) is not None
    async with EtcdClient(EtcdAccess(access.endpoints, "root", "wrong"), TIMEOUT_S) as client:
        with pytest.raises(EtcdError):
            await client.range("/x/")


def test_addresses_are_checked(tmp_path: Path) -> None:
    assert parse_endpoints(" a:1; https://b:2/,http://[::1]:3") == ("http://a:1", "https://b:2", "http://[::1]:3")
    for wrong in ("a", "ftp://a:1", "http://:1", "a:b"):
        with raises(ConfigError, subject="etcdEndpoints"):
            parse_endpoints(wrong)
    with raises(ConfigError, subject="etcdEndpoints"):
        EtcdClient(EtcdAccess(()), 1)
    missing = str(tmp_path / "none.pem")
    with pytest.raises(ConfigError):
        EtcdClient(EtcdAccess(("https://a:1",), ca_file=missing), 1)
