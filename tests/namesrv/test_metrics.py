"""The metrics of a name server, as Prometheus gets them and reads them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rucola.errors import BrokerError, ConfigError, RemotingError
from rucola.namesrv.config import NamesrvConfig, from_properties
from rucola.namesrv.server import Namesrv
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.route import RegisterBrokerRequestHeader
from rucola.remoting.client import RemotingClient
from rucola.remoting.metrics_config import MetricsExporterType
from support.errors import raises
from support.metrics import documented_names, families_of, names_of

PROM = {"metrics_exporter_type": MetricsExporterType.PROM, "metrics_prom_exporter_port": 0}


@asynccontextmanager
async def metered(**settings: Any) -> AsyncIterator[tuple[Namesrv, RemotingClient]]:
    client = RemotingClient()
    async with Namesrv("127.0.0.1", 0, config=NamesrvConfig(**PROM, **settings)) as namesrv:
        yield namesrv, client
        await client.close()


async def test_connections_and_registrations_are_exported() -> None:
    async with metered() as (namesrv, client):
        header = RegisterBrokerRequestHeader(
            broker_name="a", broker_addr="127.0.0.1:1", cluster_name="c", broker_id=0, ha_server_addr=""
        )
        register = RemotingCommand.request(RequestCode.REGISTER_BROKER, header)
        await client.invoke_ok(f"127.0.0.1:{namesrv.port}", register)
        header.body_crc32 = 5
        with raises(BrokerError, code=ResponseCode.SYSTEM_ERROR):
            await client.invoke_ok(
                f"127.0.0.1:{namesrv.port}", RemotingCommand.request(RequestCode.REGISTER_BROKER, header, b"x")
            )
        families = await families_of(namesrv.metrics_port)
        found = {sample.name: sample.value for family in families for sample in family.samples}
        wanted = {"connections": 1, "brokers": 1, "topics": 0, "registrations_total": 1}
        wanted |= {"refused_registrations_total": 1, "unsent_bytes": 0}
        assert {name: found[f"rocketmq_namesrv_{name}"] for name in wanted} == wanted


async def test_the_page_documents_exactly_the_exported_metrics() -> None:
    async with metered() as (namesrv, _):
        assert names_of(await families_of(namesrv.metrics_port)) == documented_names("Name server")


async def test_a_taken_port_stops_the_start_and_leaves_nothing() -> None:
    async with metered() as (namesrv, _):
        taken = {**PROM, "metrics_prom_exporter_port": namesrv.metrics_port}
        with pytest.raises(RemotingError):
            await Namesrv("127.0.0.1", 0, config=NamesrvConfig(**taken)).start()
        other = Namesrv("127.0.0.1", namesrv.port, config=NamesrvConfig(**PROM))
        with pytest.raises(RemotingError):
            await other.start()
        assert other.metrics_port == 0


async def test_metrics_for_other_machines_need_certificates() -> None:
    config, _ = from_properties({"metricsExporterType": "PROM", "metricsPromExporterHost": "0.0.0.0"})
    with raises(ConfigError, subject="metricsPromExporterHost"):
        await Namesrv("127.0.0.1", 0, config=config).start()
