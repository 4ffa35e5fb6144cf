"""Charts from the history: their tables without JavaScript, their drawings with it, and the page of a broker."""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rucola.console.charts import POINTS, RANGES, Chart, charts_of
from rucola.console.history import History
from support.console import live_cluster, visitor
from support.waiting import until

SERIES = (
    "puts_per_s broker-a", "gets_per_s broker-a", "disk_ratio broker-a", "topic puts_per_s Orders",
    "group backlog billing", "group delay_s billing", "group consumed_per_s billing",
)  # fmt: skip


async def add_samples(history: History, seconds: int, step_s: int) -> None:
    now_s = int(time.time())
    for at_s in range(now_s - seconds, now_s, step_s):
        await history.add(at_s, dict.fromkeys(SERIES, 123_456.789))


async def test_a_chart_has_the_mean_of_each_period_and_the_sum_of_its_series() -> None:
    history = History(None)
    await history.open()
    period_s = RANGES["2h"] // POINTS
    begin_s = (int(time.time()) // period_s - 3) * period_s
    await history.add(begin_s, {"puts_per_s a": 10.0, "puts_per_s b": 1.0})
    await history.add(begin_s + 10, {"puts_per_s a": 20.0})
    await history.add(begin_s + 2 * period_s, {"puts_per_s b": 7.0})
    rates = Chart("Rates", "rate", {"Put": ["puts_per_s a", "puts_per_s b"], "Got": ["none"]})
    found = await charts_of(history, "2h", [rates])
    assert (found.columns_of(0), found.period_s) == ([0], period_s)
    assert found.rows == [(begin_s * 1000, [16.0, None]), ((begin_s + 2 * period_s) * 1000, [7.0, None])]
    assert (await charts_of(history, "90d", [Chart("Rates", "rate", {"Put": ["none"]})])).rows == []
    assert [(await charts_of(history, text, [])).range for text in ("2d", "", "<script>")] == ["2d", "2h", "2h"]
    await history.close()


async def test_the_pages_have_tables_of_what_was_measured(tmp_path: Path) -> None:
    async with live_cluster(tmp_path) as running:
        slave = await running.start_slave()
        async with visitor(running.namesrv) as console:
            await console.shows("/", "Put/s Got/s")
            for path, title in (
                ("/topic?name=Orders", "Messages per second"),
                ("/group?name=billing", "Backlog"),
                (f"/broker?address={slave.address}", "Replication lag"),
            ):
                assert title in await console.shows(path, "Time "), path
            text = await console.text(f"/broker?address={slave.address}")
            assert "Role slave 1 " in text
            master = next(one for one in console.console.collector.snapshot.brokers if one.label == "broker-a")
            text = await console.shows(f"/broker?address={master.address}", "Slaves")
            assert "0 B 0 s –" in text, "it has everything, and there is no in-sync set"
            assert (await console.get("/broker?address=127.0.0.1:1")).status_code == 404
            await add_samples(console.console.history, RANGES["2h"], 60)
            for path in ("/", "/topic?name=Orders", "/group?name=billing", f"/broker?address={master.address}"):
                page = await console.get(path)
                assert page.text.count('data-v="') > POINTS - 2, path


class Lake:
    """What the collector reads of a lake: broker-a was archived live, broker-b's store up to its 100th byte."""

    def __init__(self, store: Path) -> None:
        self.store = store

    def status(self) -> Any:
        return SimpleNamespace(committed_ms=1_000_000_000_000)

    def progress(self) -> Any:
        live = SimpleNamespace(is_live=True, queues={"Orders": {"0": 4, "1": 10}})
        stored = SimpleNamespace(is_live=False, physical_offset=100)
        return {"broker-a": live, "gone": live, str(self.store): stored}


async def test_the_cluster_page_says_what_a_lake_lacks(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "broker-b")
    async with live_cluster(tmp_path) as running, visitor(running.namesrv, lake=lake) as console:
        text = await console.shows("/", "Not archived yet")
        assert "Last commit of the lake: 2001-09-09 01:46:40 UTC" in text
        assert re.search(r"broker-b \S+ KiB broker-a 6 messages gone unknown ", text)
        assert "Put/s Got/s Not archived yet Not archived yet Age of the last commit" in text

        async def has_row() -> bool:
            """Messages of broker-a, bytes of broker-b's log; each comes when it is measured."""
            return bool(re.search(r" UTC \S+ \S+ 6 \S+ KiB [\d,]+ d ", await console.text("/")))

        await until(has_row)
