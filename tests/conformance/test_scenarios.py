"""All scenarios, against a broker and against a proxy before it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rucola.client.connection_options import ConnectionOptions
from rucola.conformance.scenarios import SCENARIOS, run
from rucola.http2.client import GrpcChannel
from rucola.proxy.config import ProxyConfig
from rucola.proxy.server import Proxy
from rucola.remoting.client import host_and_port
from support.cluster import cluster


@pytest.mark.parametrize("order", [False, True])
async def test_broker_and_proxy_pass(tmp_path: Path, order: bool) -> None:
    async with cluster(tmp_path) as running:
        broker = await running.start_broker(grpc_server_port=0, enable_property_filter=True)
        await running.peer(broker).alter_topic("T", 2, order=order)
        async with Proxy(ConnectionOptions(running.namesrv), ProxyConfig(grpc_server_port=0)) as proxy:
            for endpoint in (broker.grpc_endpoint, proxy.address):
                channel = GrpcChannel(*host_and_port(endpoint))
                outcomes = await run(channel, "T")
                await channel.close()
                assert [outcome for outcome in outcomes if outcome.result == "failed"] == []
                expected = {"passed": len(SCENARIOS) - (not order), "skipped": not order}
                assert Counter(outcome.result for outcome in outcomes) == Counter(expected)
