"""Heartbeats while a broker does not respond: which brokers get them, and how often."""

from __future__ import annotations

from pathlib import Path

import pytest

from rucola.client import Producer
from rucola.client import instance as instance_module
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.connection import Connection, Reply
from support.cluster import Tally, cluster


async def test_only_the_absent_broker_gets_repeated_heartbeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand clients that repeated all heartbeats would burden the brokers that are left."""
    monkeypatch.setattr(instance_module, "ABSENCE_INTERVAL_MS", 20)
    monkeypatch.setattr(instance_module, "REACTION_PAUSE_MS", 5)
    present: Tally[int] = Tally()
    absent: Tally[int] = Tally()

    def confirm(connection: Connection, command: RemotingCommand) -> Reply:
        present.add(command.code)
        return command.response(ResponseCode.SUCCESS)

    def refuse(connection: Connection, command: RemotingCommand) -> Reply:
        absent.add(command.code)
        return command.response(ResponseCode.SYSTEM_ERROR)

    async with cluster(tmp_path) as running:
        await running.scripted_broker("broker-a", "T", {RequestCode.HEART_BEAT: confirm})
        await running.scripted_broker("broker-b", "T", {RequestCode.HEART_BEAT: refuse})
        async with Producer("g", running.namesrv) as producer:
            await producer.queues("T")
            await absent.reach(20)
            # One when the routes became known, and at most one for each event until then.
            assert len(present.items) <= 3
