"""Every guarantee under every fault: an elected group loses exactly what its configuration allows.

Each case is a group with one flushDiskType and one role of the master, under load all the time. One fault follows the
other, and after each of them a ledger is compared with all queues:

    fault                                          SYNC_MASTER    ASYNC_MASTER
    etcd is killed, and back after longer          nothing        nothing
    than the lease
    the master is cut off from etcd so long        nothing        nothing
    the master is stopped in order                 nothing        nothing
    the master is paused (SIGSTOP) until           nothing        the end of its log that no slave had,
    another one is elected, and goes on                           which it keeps aside
    the master is killed                           nothing        the same
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest

from rucola.admin import AdminClient
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.send import SendMessageRequestHeaderV2
from rucola.remoting.client import RemotingClient
from support.elected_group import ElectedGroup
from support.election_trial import SETTLE_S, Trial
from support.etcd import EtcdServer
from support.proxy import Proxy
from support.send_ledger import TOPIC

pytestmark = pytest.mark.slow

AWAY_S = 6.0
"""How long etcd is away: longer than etcdTtl."""
HELD = 50
"""Requests that wait in the socket of a paused master."""


class Matrix(Trial):
    """One case: a group of two with a proxy in front of etcd for each, and its faults."""

    proxies: dict[int, Proxy]

    async def etcd_is_killed(self) -> None:
        first, before = await self.group.master(), len(self.ledger.acknowledged)
        await asyncio.to_thread(self.group.etcd.kill)
        await self.acknowledges(self.now_s() + AWAY_S)
        await asyncio.to_thread(self.group.etcd.start)
        assert (await self.group.master(), len(self.ledger.acknowledged) > before) == (first, True)

    async def master_is_cut_off_from_etcd(self) -> None:
        first = await self.group.master()
        self.proxies[first].freeze()
        await self.acknowledges(self.now_s() + AWAY_S)
        self.proxies[first].thaw()
        assert await self.group.master() == first

    async def master_is_stopped(self) -> None:
        first = await self.group.master()
        assert await asyncio.to_thread(self.group.brokers[first].stop) == 0
        await self.another_leads(first)
        await asyncio.to_thread(self.group.start, first)

    async def master_is_paused_and_goes_on(self) -> None:
        """It acknowledges none of the requests that were in its socket when it went on."""
        group, client = self.group, RemotingClient()
        first = await group.master()
        header = SendMessageRequestHeaderV2(
            producer_group="p", topic=TOPIC, default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
            sys_flag=0, born_timestamp=1, flag=0, properties="",
        )  # fmt: skip
        await client.connect(group.address(first))
        group.signal(first, signal.SIGSTOP)
        held = [
            asyncio.create_task(
                client.invoke(
                    group.address(first),
                    RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, b"held %d" % number),
                    1000 * SETTLE_S,
                )
            )
            for number in range(HELD)
        ]
        await self.another_leads(first)
        group.signal(first, signal.SIGCONT)
        outcomes = await asyncio.gather(*held, return_exceptions=True)
        await client.close()
        answers = [each for each in outcomes if isinstance(each, RemotingCommand)]
        assert ResponseCode.SUCCESS not in {answer.code for answer in answers}

    async def master_is_killed(self) -> None:
        first = await self.group.master()
        await asyncio.to_thread(self.group.kill, first)
        await self.another_leads(first)
        async with AdminClient(self.group.namesrv) as admin:
            status = await admin.roles.status(self.group.address(await self.group.master()))
        assert status.switch_reason == "election"
        await asyncio.to_thread(self.group.start, first)


@pytest.mark.parametrize("role", ["SYNC_MASTER", "ASYNC_MASTER"])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_faults_lose_what_the_configuration_allows_and_no_more(
    tmp_path: Path, own_etcd: EtcdServer, flush: str, role: str
) -> None:
    async with AsyncExitStack() as stack:
        processes = stack.enter_context(ExitStack())
        proxies = {
            number: await stack.enter_async_context(Proxy(own_etcd.endpoint.removeprefix("http://")))
            for number in (1, 2)
        }
        endpoints = {number: f"http://{proxy.address}" for number, proxy in proxies.items()}
        group = await asyncio.to_thread(
            lambda: ElectedGroup(
                tmp_path, processes, own_etcd, endpoints=endpoints, flushDiskType=flush, etcdMasterRole=role
            )
        )
        matrix = await stack.enter_async_context(Matrix.of(group))
        matrix.proxies = proxies
        await matrix.undergo(matrix.etcd_is_killed, matrix.master_is_cut_off_from_etcd, matrix.master_is_stopped)
        may_lose = role == "ASYNC_MASTER"
        await matrix.undergo(matrix.master_is_paused_and_goes_on, matrix.master_is_killed, may_lose=may_lose)
