"""A broker is killed amid the receives and acknowledgements of members that receive by POP."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from rucola.client import Producer
from rucola.store.tools.check import check
from support.pop_ledger import PopLedger
from support.processes import Machines
from support.send_ledger import SendLedger, read_all
from support.waiting import until

pytestmark = pytest.mark.slow

KILLS = 3
SEND_PAUSE_S = 0.005


async def test_no_kill_of_the_broker_forgets_an_acknowledgement_or_a_message(tmp_path: Path) -> None:
    random = Random(7)
    with ExitStack() as stack:
        machines = Machines(tmp_path, stack)
        broker = machines.broker()
        sent, pops = SendLedger("s"), [PopLedger("g"), PopLedger("in-order", orderly=True)]

        async def send(producer: Producer) -> None:
            while True:
                await sent.send(producer)
                await asyncio.sleep(SEND_PAUSE_S)

        async with (
            asyncio.timeout(240),
            Producer("p", machines.namesrv, retry_times=0) as producer,
            asyncio.TaskGroup() as clients,
        ):
            tasks = [clients.create_task(send(producer))]
            tasks += [clients.create_task(ledger.run(machines.namesrv, 2)) for ledger in pops]
            for _ in range(KILLS):
                counts = [len(ledger.acknowledged) + random.randrange(20, 200) for ledger in pops]
                await until(
                    lambda counts=counts: all(
                        len(ledger.acknowledged) >= count for ledger, count in zip(pops, counts, strict=True)
                    )
                )
                broker.process.kill()
                broker.process.wait()
                broker = machines.broker(listenPort=machines.addresses["master"].rpartition(":")[2])
            tasks[0].cancel()
            await asyncio.wait(tasks[:1])
            stored = await read_all(machines.namesrv)
            await until(lambda: all(ledger.have_all(stored) for ledger in pops), 120)
            for task in tasks:
                task.cancel()
        for ledger in pops:
            ledger.check(stored)
        assert broker.stop() == 0
        assert not check(tmp_path / "master")
