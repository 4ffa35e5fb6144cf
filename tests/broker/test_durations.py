"""How long puts and reads took, as `brokerStatus` shows it."""

from __future__ import annotations

import itertools
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rucola.broker.durations import PutDurations
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode
from rucola.protocol.kv import KVTable
from rucola.store.config import BrokerRole
from support.broker_peer import broker_peer
from support.peer import Peer


async def figures(peer: Peer) -> dict[str, str]:
    return decode_body(KVTable, (await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table


def test_puts_are_counted_in_their_ranges_once_the_minute_is_over() -> None:
    durations = PutDurations()
    for duration_ms in (1, 9, 10, 99, 100, 12_345, 0, -5):
        durations.record(duration_ms)
    durations.record(1999, 3)
    assert durations.percentile_ms(0.99) == 0
    durations.end_minute(put_count=100)
    assert durations.distribution() == (
        "[<=0ms]:91 [0~10ms]:2 [10~50ms]:1 [50~100ms]:1 [100~200ms]:1 [200~500ms]:0 [500ms~1s]:0 [1~2s]:3 [2~3s]:0 "
        "[3~4s]:0 [4~5s]:0 [5~10s]:0 [10s~]:1 "
    )
    assert (durations.percentile_ms(0.91), durations.percentile_ms(0.93), durations.max_ms) == (0, 9, 12_345)
    durations.end_minute(put_count=100)
    assert (durations.percentile_ms(0.999), durations.max_ms) == (0, 12_345)


@given(st.lists(st.integers(0, 1000), min_size=1), st.sampled_from([0.5, 0.99, 0.999]))
def test_a_percentile_is_the_duration_that_so_many_puts_did_not_exceed(durations_ms: list[int], share: float) -> None:
    durations = PutDurations()
    for duration_ms in durations_ms:
        durations.record(duration_ms)
    durations.end_minute(len(durations_ms))
    found = durations.percentile_ms(share)
    assert sum(duration_ms <= found for duration_ms in durations_ms) >= share * len(durations_ms)
    assert sum(duration_ms < found for duration_ms in durations_ms) < share * len(durations_ms)


async def test_a_put_that_waits_for_a_slave_counts_with_its_wait(tmp_path: Path) -> None:
    store = {"broker_role": BrokerRole.SYNC_MASTER}
    ticks = itertools.count(1_000_000, 7)
    async with broker_peer(tmp_path, store=store, clock=lambda: next(ticks)) as peer:
        before = await figures(peer)
        assert (before["putMessageEntireTimeMax"], before["getMessageEntireTimeMax"]) == ("0", "0")
        await peer.send()
        await peer.pull()
        after = await figures(peer)
        assert int(after["putMessageEntireTimeMax"]) >= 7
        assert int(after["getMessageEntireTimeMax"]) >= 7
        assert after["dispatchMaxBuffer"] == after["sendThreadPoolQueueCapacity"] == "0"


async def test_refused_puts_are_counted(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.send()
        for _ in range(3):
            await peer.send(b"x" * (1 << 20))  # larger than a file of the log
        assert (await figures(peer))["putMessageFailedTimes"] == "3"
