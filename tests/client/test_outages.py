"""The log of a consumer whose broker is away, or whose topic does not exist."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from rucola.client import PushConsumer
from rucola.client.consumer import assignment, fetcher
from rucola.client.consumer.missing_topics import MissingTopics
from support.cluster import cluster
from support.consumers import FIRST, cluster_with_topic, consumer_of, send, take
from support.waiting import until


def messages_of_clients(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The messages logged by clients; brokers and name servers of this process log as well."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("rucola.client")]


async def test_an_absent_broker_has_one_line_when_lost_and_one_when_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen queues fail hundreds of times in this short outage."""
    caplog.set_level(logging.INFO, "rucola.client")
    monkeypatch.setattr(fetcher, "PULL_ERROR_PAUSE_MS", 5)
    attempts = 0
    pull = fetcher.PullConsumer.pull

    async def count(*arguments: object, **options: object) -> object:
        nonlocal attempts
        attempts += 1
        return await pull(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(fetcher.PullConsumer, "pull", count)
    async with (
        cluster_with_topic(tmp_path, range(16), queues=16) as (running, broker),
        consumer_of(running) as consumer,
    ):
        assert sorted(await take(consumer, 16)) == list(range(16))
        caplog.clear()
        port = broker.config.listen_port
        await broker.stop()
        attempts = 0
        await until(lambda: attempts > 500)
        lost = messages_of_clients(caplog)
        await running.start_broker(port=port)
        await send(running, [16])
        assert await take(consumer, 1) == [16]
        await until(lambda: "works again" in caplog.text)
        lines = [message for message in messages_of_clients(caplog) if "broker broker-a" in message]
    assert len(lost) <= 3, lost
    assert lines[0].startswith("broker broker-a failed, retrying: ")
    assert lines[-1].startswith("broker broker-a: works again after ")
    assert len(lines) == 2, lines


async def test_a_missing_topic_has_one_warning_with_the_most_similar_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "UNBALANCED_PAUSE_MS", 10)
    async with cluster(tmp_path) as running:
        broker = await running.start_broker(auto_create_topic_enable=False)
        await running.create_topic(broker, "Orders")
        consumer = PushConsumer("g", running.namesrv, consume_from=FIRST)
        consumer.subscribe("Ordres")
        async with consumer:
            await until(lambda: "Ordres" in caplog.text)
            for _ in range(5):
                await consumer._assignment.rebalanced()
            (line,) = [record.getMessage() for record in caplog.records if "Ordres" in record.getMessage()]
            assert line == (
                "group g: subscription to topic Ordres failed, retrying: no name server knows this topic, did you mean "
                "Orders?; consumption begins when it exists"
            )
            # It works as soon as the topic exists.
            await running.create_topic(broker, "Ordres")
            await until(lambda: len(consumer.queues) == 4)
            await until(lambda: "subscription to topic Ordres: works again" in caplog.text)


async def test_warnings_of_a_missing_topic_are_repeated_rarely(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    async with cluster(tmp_path) as running, consumer_of(running) as consumer:
        caplog.clear()
        missing = MissingTopics("h", consumer.instance.name_servers, lambda: now[0])
        for second in range(0, 86_400, 30):
            now[0] = second
            await missing.missing("T")
            await missing.missing("%RETRY%h")
    lines = [record.getMessage() for record in caplog.records if "group h" in record.getMessage()]
    assert 8 < len(lines) < 35
    assert not any("RETRY" in line for line in lines)
