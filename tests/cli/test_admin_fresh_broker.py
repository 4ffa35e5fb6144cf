"""Commands with a broker that has just started; Apache's broker has no rates for the first ten seconds."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.kv import KVTable
from rucola.remoting.connection import Connection
from support.cluster import cluster
from support.servers import run

FRESH = {"brokerVersionDesc": "V4_9_8", "putTps": "", "getTransferedTps": "", "earliestMessageTimeStamp": "-1"}


async def test_cluster_list_shows_a_rate_of_zero(tmp_path: Path) -> None:
    def runtime_info(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return command.response(ResponseCode.SUCCESS, body=encode_body(KVTable(table=FRESH)))

    async with cluster(tmp_path) as running:
        await running.scripted_broker("fresh", "T", {RequestCode.GET_BROKER_RUNTIME_INFO: runtime_info})
        command = ("admin", "clusterList", "-n", running.namesrv)
        table = await asyncio.to_thread(run, *command)
        document = await asyncio.to_thread(run, *command, "--json")
    row = (table.stdout + table.stderr).splitlines()[1].split()
    assert row[1] == "fresh"
    assert [cell.partition("(")[0] for cell in row[5:7]] == ["0.00", "0.00"]
    assert json.loads(document.stdout)[0]["runtimeStats"] == FRESH
