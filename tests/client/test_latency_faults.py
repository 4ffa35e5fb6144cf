"""Slow and failing brokers: out of turn for as long as Apache's table says, and who sends meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from rucola.client import Producer
from rucola.client.producer import latency_faults
from rucola.client.producer.latency_faults import BrokerFaults
from rucola.client.producer.queue_rotation import QueueRotation
from rucola.domain.queue import MessageQueue
from rucola.message import Message
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.connection import Connection, Reply
from support.cluster import cluster

A, B, C = (MessageQueue("T", f"broker-{name}", 0) for name in "abc")


@pytest.mark.parametrize(
    ("latency_ms", "out_of_turn_ms"),
    [
        (0, 0),
        (99.9, 0),
        (549, 0),
        (550, 30_000),
        (999, 30_000),
        (1000, 60_000),
        (2000, 120_000),
        (3000, 180_000),
        (14_999, 180_000),
        (15_000, 600_000),
        (10**9, 600_000),
    ],
)
def test_a_slower_response_excludes_a_broker_for_longer(latency_ms: float, out_of_turn_ms: int) -> None:
    faults = BrokerFaults()
    faults.record_response("broker-a", latency_ms, 1000)
    assert faults.is_available("broker-a", 1000 + out_of_turn_ms)
    assert out_of_turn_ms == 0 or not faults.is_available("broker-a", 999 + out_of_turn_ms)


def test_a_failure_counts_as_thirty_seconds_until_a_success() -> None:
    faults = BrokerFaults()
    faults.record_response("broker-a", 1, 0, failed=True)
    assert not faults.is_available("broker-a", 599_999)
    assert faults.is_available("broker-a", 600_000)
    faults.record_response("broker-a", 1, 10)
    assert faults.is_available("broker-a", 10)
    assert faults.is_available("broker-b", 10)


def test_only_available_brokers_are_selected() -> None:
    turns = QueueRotation(BrokerFaults())
    turns.record_response("broker-a", -700, 0)
    assert {turns.next([A, B, C], 10) for _ in range(6)} == {B, C}
    assert {turns.next([A, B, C], 10, "broker-b") for _ in range(6)} == {C}
    assert {turns.next([A, B, C], 30_000) for _ in range(6)} == {A, B, C}


def test_the_better_half_is_selected_if_no_broker_is_available() -> None:
    turns = QueueRotation(BrokerFaults())
    for broker_name, latency_ms in (("broker-a", 4000), ("broker-b", 700), ("broker-c", 20_000), ("broker-d", 800)):
        turns.record_response(broker_name, -latency_ms, 0)
    assert {turns.next([A, B, C], 10) for _ in range(8)} >= {B}
    only_c = {turns.next([C], 10) for _ in range(8)}
    assert only_c == {C}  # brokers without a queue are forgotten


def test_brokers_are_ordered_by_availability_then_latency() -> None:
    faults = BrokerFaults()
    assert faults.least_faulty(0) is None
    faults.record_response("slow", 4000, 0)
    assert faults.least_faulty(0) == "slow"
    faults.record_response("failed", 1, 0, failed=True)
    faults.record_response("fast", 10, 0)
    faults.record_response("fair", 60, 0)
    assert {faults.least_faulty(0) for _ in range(4)} == {"fast", "fair"}


def test_without_fault_tolerance_only_the_last_failed_broker_is_avoided() -> None:
    turns = QueueRotation(None)
    turns.record_response("broker-a", 10**6, 0, failed=True)
    assert {turns.next([A, B], 0) for _ in range(4)} == {A, B}
    assert {turns.next([A, B], 0, "broker-a") for _ in range(4)} == {B}
    assert turns.next([A], 0, "broker-a") == A


@pytest.mark.parametrize("tolerant", [True, False])
async def test_a_producer_avoids_a_failing_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tolerant: bool
) -> None:
    """With tolerance it is tried once; without, whenever its turn comes. Here no slowness counts, only failures."""
    monkeypatch.setattr(latency_faults, "LATENCY_MAX_MS", (20_000,))
    monkeypatch.setattr(latency_faults, "NOT_AVAILABLE_DURATION_MS", (600_000,))

    async with cluster(tmp_path) as running:
        tries: list[RemotingCommand] = []

        def refuse(connection: Connection, command: RemotingCommand) -> Reply:
            tries.append(command)
            return command.response(ResponseCode.SYSTEM_ERROR, remark="as told")

        await running.scripted_broker("broker-b", "T", {RequestCode.SEND_MESSAGE_V2: refuse})
        await running.create_topic(await running.start_broker("broker-a"), "T", queues=1)
        async with Producer("p", running.namesrv, latency_fault_tolerance=tolerant) as producer:
            for number in range(10):
                assert (await producer.send(Message("T", b"%d" % number))).queue.broker_name == "broker-a"
    assert len(tries) == 1 if tolerant else len(tries) > 1
