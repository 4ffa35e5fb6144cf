"""An elected group with a TCP proxy on every way: between brokers, to etcd, to the name server, from clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.elected_group import ElectedGroup
from support.etcd import EtcdServer
from support.ports import HOST
from support.proxy import Proxy

FAST = {
    "etcdTtl": "6000", "etcdLoopWait": "500", "etcdRetryTimeout": "2500", "etcdInSyncTimeout": "1500",
    "haHousekeepingInterval": "3000", "haSendHeartbeatInterval": "500", "slaveTimeout": "1000",
    "registerNameServerPeriod": "1000", "registerBrokerTimeoutMills": "1000",
}  # fmt: skip
"""Times of tests: those of failures are short, but a member may be slow for as long as the lease allows."""
LEASE_S = 6.0
LONGER_S = LEASE_S + 2.0
"""Seconds in which a lease ends for want of renewals."""


@dataclass
class Ways:
    """The proxies, by the number of the broker that they belong to."""

    etcd: dict[int, Proxy] = field(default_factory=dict)
    """From the broker to etcd."""
    namesrv: dict[int, Proxy] = field(default_factory=dict)
    """From the broker to the name server."""
    clients: dict[int, Proxy] = field(default_factory=dict)
    """From clients, and from the other broker with a request for a promise, to the broker."""
    replication: dict[int, Proxy] = field(default_factory=dict)
    """From slaves to the broker: requests are their reports, responses the log."""

    def heal(self) -> None:
        """End all that bytes vanish."""
        for proxies in (self.etcd, self.namesrv, self.clients, self.replication):
            for proxy in proxies.values():
                proxy.heal()


@asynccontextmanager
async def partitioned_group(
    path: Path, etcd: EtcdServer, count: int = 2, **settings: str
) -> AsyncIterator[tuple[ElectedGroup, Ways]]:
    """Start such a group, with the times of `FAST`. Its clients reach the name server directly."""
    async with AsyncExitStack() as stack:
        processes = stack.enter_context(ExitStack())
        group = await asyncio.to_thread(
            lambda: ElectedGroup(path, processes, etcd, count, is_started=False, **{**FAST, **settings})
        )
        ways = Ways()

        async def proxy(target: str, host: str = HOST, port: int = 0) -> Proxy:
            return await stack.enter_async_context(Proxy(target, host=host, port=port))

        for number, (port, ha_port) in group.ports.items():
            host = f"127.0.0.{10 + number}"  # the proxies have the ports of the broker, at another loopback address
            ways.etcd[number] = await proxy(etcd.endpoint.removeprefix("http://"))
            ways.namesrv[number] = await proxy(group.namesrv)
            ways.clients[number] = await proxy(f"{HOST}:{port}", host, port)
            ways.replication[number] = await proxy(f"{HOST}:{ha_port}", host, ha_port)
            group.settings_of[number] = {
                "brokerIP1": host,
                "brokerIP2": host,
                "etcdEndpoints": f"http://{ways.etcd[number].address}",
                "namesrvAddr": ways.namesrv[number].address,
            }
            await asyncio.to_thread(group.start, number)
        yield group, ways
