"""Consumers of more queues than a broker holds pulls for one connection."""

from __future__ import annotations

from pathlib import Path

import pytest

from rucola.client import held_pulls
from rucola.client.consumer import fetcher
from support.cluster import cluster
from support.consumers import committed, consumer_of, send, take
from support.waiting import until

QUEUES = 10


async def test_pulls_are_held_on_further_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(held_pulls, "MAX_HELD", 4)
    async with cluster(tmp_path) as running:
        broker = await running.start_broker(max_held_pulls_per_connection=4)
        await running.create_topic(broker, "T", QUEUES)
        async with consumer_of(running) as consumer:
            await send(running, range(3 * QUEUES))
            assert sorted(await take(consumer, 3 * QUEUES)) == list(range(3 * QUEUES))
        assert await committed(running) == 3 * QUEUES
    assert caplog.text == ""


async def test_refused_pulls_are_one_outage_and_all_queues_are_consumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fetcher, "PULL_ERROR_PAUSE_MS", 5)
    async with cluster(tmp_path) as running:
        broker = await running.start_broker(max_held_pulls_per_connection=4)
        await running.create_topic(broker, "T", QUEUES)
        async with consumer_of(running) as consumer:
            await until(lambda: bool(caplog.records))
            await send(running, range(3 * QUEUES))
            assert sorted(await take(consumer, 3 * QUEUES)) == list(range(3 * QUEUES))
        assert await committed(running) == 3 * QUEUES
    assert len(caplog.records) == 1
    assert "maxHeldPullsPerConnection" in caplog.text
