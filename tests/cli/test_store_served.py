"""`rucola store check` on a store that a broker serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from rucola.client import Message
from rucola.client.sync import Producer
from rucola.store.directory_lock import is_served
from support.servers import run_here, server

FREE_PORTS = ("--namesrv-port", "0", "--broker-port", "0")
SMALL = "mappedFileSizeCommitLog=65536\nmaxHashSlotNum=100\nmaxIndexNum=400\nmappedFileSizeConsumeQueue=2000\n"


@pytest.mark.slow
def test_a_store_in_use_is_checked_as_far_as_it_is_complete(tmp_path: Path) -> None:
    store, conf = tmp_path / "store", tmp_path / "broker.conf"
    conf.write_text(SMALL)
    assert not is_served(tmp_path)
    with server("standalone", "--store", store, *FREE_PORTS, "-c", conf, log=tmp_path / "log") as running:
        namesrv, _ = running.addresses()
        assert run_here("store", "check", store).returncode == 0, "an empty one"
        with Producer("g", namesrv) as producer:
            for number in range(1000):
                producer.send(Message("T", b"%d" % number * 50, keys=f"k{number}"))
            # In the middle of sends, and after them.
            during = run_here("store", "check", store)
        after = run_here("store", "check", store)
        for result in (during, after):
            assert (result.returncode, result.stdout) == (0, f"{store} is clean, as far as it was checked\n")
            assert "is being served" in result.stderr
        # Damage in the part that is complete is found all the same.
        log = store / "commitlog" / f"{0:020}"
        with log.open("r+b") as file:
            file.seek(file.read().index(b"2" * 50))
            file.write(b"damage")
        damaged = run_here("store", "check", store)
        assert damaged.returncode == 1
        assert str(log) in damaged.stdout
        assert running.stop() == 0
    assert not is_served(store)
    assert run_here("store", "check", store).returncode == 1, "closed, the damage is found as ever"
