"""A slave without a log gets the whole log of a running master, at the pace that it is given."""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random

import pytest

from rucola.broker.config import BrokerConfig, TransferFrom, from_properties
from rucola.broker.replication.transfer_progress import Pace, TransferProgress
from rucola.client import Producer, SendStatus
from rucola.errors import ConfigError
from rucola.message import Message
from rucola.store.directory_reader import StoreReader
from support.cluster import cluster
from support.errors import raises
from support.processes import Machines
from support.replication import caught_up, end_of, same_logs, send
from support.waiting import until

FILE = 1 << 20


def begin_of(directory: Path) -> int:
    with StoreReader(directory) as reader:
        return reader.min_physical_offset


@pytest.mark.parametrize(("setting", "begin"), [(TransferFrom.begin, 0), (TransferFrom.last, 2 * FILE)])
async def test_a_new_slave_gets_the_log_from_its_beginning_or_the_newest_file(
    tmp_path: Path, setting: TransferFrom, begin: int
) -> None:
    async with asyncio.timeout(60), cluster(tmp_path) as running:
        master = await running.start_broker(ha_transfer_from=setting)
        await running.create_topic(master, "T")
        await send(running, 5, size=500_000)
        assert 2 * FILE < await end_of(running, master) < 3 * FILE
        slave = await running.start_slave()
        await caught_up(running, master, slave)
    same_logs(tmp_path)
    assert begin_of(tmp_path / "slave") == begin


@pytest.mark.slow
async def test_a_slave_that_is_behind_is_sent_no_more_than_the_rate_and_its_progress_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below haSlaveFallbehindMax the rest follows at once: senders may wait for it."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("rucola.broker.replication.ha_service.LOG_LAG_INTERVAL_MS", 100)
    async with asyncio.timeout(60), cluster(tmp_path) as running:
        master = await running.start_broker(ha_catch_up_rate=2_000_000, ha_slave_fallbehind_max=200_000)
        await running.create_topic(master, "T")
        await send(running, 5, size=500_000)
        loop = asyncio.get_running_loop()
        slave = await running.start_slave()
        began_s = loop.time()
        await caught_up(running, master, slave)
        # 2.3 MB at 2 MB/s; only the lower bound is a promise.
        assert loop.time() - began_s > 0.9
    same_logs(tmp_path)
    assert "% of the" in caplog.text
    assert "bytes/s, about" in caplog.text


def test_the_pace_allows_the_rate_and_makes_up_for_no_pause() -> None:
    now_s = 100.0
    pace = Pace(1000, lambda: now_s)
    assert pace.delay_s(1) == 0, "too short to wait for, and not forgotten"
    assert pace.delay_s(99) == pytest.approx(0.1)
    now_s += 50
    assert pace.delay_s(500) == pytest.approx(0.5)
    assert pace.delay_s(500) == pytest.approx(1.0)


def test_progress_names_share_rate_and_time_left() -> None:
    progress = TransferProgress(1000, 10.0)
    assert progress.text(1500, 3000, 12.0) == "; 25 % of the 2000 bytes from 1000 on, 250 bytes/s, about 6 s left"
    assert progress.text(1500, 3000, 13.0) == "; 25 % of the 2000 bytes from 1000 on, 0 bytes/s"
    assert progress.text(3000, 3000, 14.0) == ""


def test_wrong_settings_are_named() -> None:
    with raises(ConfigError, subject="haTransferFrom"):
        from_properties({"haTransferFrom": "first"})
    with raises(ConfigError, subject="haCatchUpRate"):
        from_properties({"haCatchUpRate": "-1"})
    assert BrokerConfig().ha_transfer_from is TransferFrom.begin


@pytest.mark.slow
async def test_a_slave_that_is_killed_while_it_catches_up_continues_where_it_was(tmp_path: Path) -> None:
    """Killed three times, and its master goes on taking messages; nothing is copied from the beginning again."""
    begins = re.compile(r"requests the log from \d+ and gets it from (\d+)")
    with ExitStack() as stack:
        machines = Machines(tmp_path, stack)
        limits = {"haCatchUpRate": "500000", "haSlaveFallbehindMax": "100000"}
        master = machines.broker("master", "SYNC_MASTER", **limits)
        async with asyncio.timeout(120), Producer("p", machines.namesrv, retry_times=0) as producer:

            async def put(count: int) -> None:
                for number in range(count):
                    await producer.send(Message("T", Random(number).randbytes(20_000)))

            def has_files(count: int) -> bool:
                return len(list((tmp_path / "slave" / "commitlog").glob("0*"))) >= count

            await put(100)
            for files in (6, 12, 18):
                slave = machines.broker("slave", "SLAVE")
                await until(partial(has_files, files))
                slave.process.kill()
                slave.process.wait()
                await put(1)
            slave = machines.broker("slave", "SLAVE")

            async def is_safe() -> bool:
                return (await producer.send(Message("T", b"is the slave there?"))).status is SendStatus.SEND_OK

            await until(is_safe, 60)
        assert (slave.stop(), master.stop()) == (0, 0)
        resumed = [int(begin) for begin in begins.findall(machines.log("master"))]
    assert resumed[0] == 0
    assert len(resumed) == 4
    assert sorted(set(resumed)) == resumed
    assert resumed[3] > 15 * 65536
    same_logs(tmp_path, "master")
    assert begin_of(tmp_path / "slave") == 0
