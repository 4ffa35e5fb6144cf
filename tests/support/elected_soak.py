"""A soak of elections: brokers are killed, stopped and paused under load, and a ledger is the judge.

    python -m support.elected_soak [--promotions 100] [--brokers 3] [--producers 4] [--seed 1] [--json]

In each round the master is killed (kill -9), stopped in order, or paused until another one is master; in some rounds,
etcd is killed as well and started again once all has gone on for a while. Producers send all the time, one message
after the other without retries; a reader polls all queues, and members that receive by POP acknowledge or crash. A
producer and some members are clients of gRPC behind a proxy. At the end

- every message that was answered with SEND_OK is at its queue offset, with its hash;
- queue offsets are without gap or repeat, in the order of the log;
- a send that was acknowledged before another one began has the smaller offset, and no message is stored twice;
- groups that receive by POP, one of them in order, have acknowledged every message, and got none again after it;
- what was accepted through the proxy is stored once;
- the reader has seen every message once, in order, and nothing that is not in the log now (nonmonotonic poll, dirty
  read, stuck consumer);
- the logs of all brokers have the same bytes, and their stores are sound.

Between two faults, while all members are in sync, every send is answered with SEND_OK. On a machine that does too much
this may take several tries, up to SETTLE_S; the reasons are printed.

Prints the median and the worst failover time: from the fault to the first send that began after it and was stored,
of producers that are connected to the brokers and through the proxy.
If a check fails, the directory with all stores and logs is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import statistics
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from operator import ge
from pathlib import Path

from rucola.client import Producer
from rucola.client.connection_options import ConnectionOptions
from rucola.client.producer.send_request import SendResult
from rucola.proxy.config import ProxyConfig
from rucola.proxy.server import Proxy
from support.elected_group import ElectedGroup
from support.etcd import EtcdServer
from support.pop_ledger import PopLedger
from support.proxied_clients import ProxiedSends
from support.send_ledger import Polls, SendLedger, Stored, check_ledgers, read_all
from support.waiting import until

FAULTS = ("kill", "kill", "stop", "pause")
ETCD_EACH = 5
"""In one of so many rounds etcd is away for a while first."""
ETCD_AWAY_S = 6.0
SEND_PAUSE_S = 0.005
SHOWN_REFUSALS = 5
QUIET_SENDS = 1000
"""Sends of all producers between two faults."""
SETTLE_S = 300.0
POP_MEMBERS = 2


@dataclass
class SoakResult:
    """Figures of a run."""

    acknowledged: int = 0
    without_guarantee: int = 0
    failed: int = 0
    polled: int = 0
    popped: int = 0
    proxied: int = 0
    disturbed: int = 0
    """Periods without a fault in which sends were refused."""
    refusals: Counter[str] = field(default_factory=Counter)
    """Why."""
    failovers_s: dict[str, list[float]] = field(default_factory=dict)
    proxied_failovers_s: dict[str, list[float]] = field(default_factory=dict)

    def text(self) -> str:
        lines = [
            f"{self.acknowledged} messages acknowledged, none lost; {self.without_guarantee} stored without the "
            f"guarantee, {self.failed} refused or without an answer; {self.polled} polled in order, "
            f"{self.popped} received by POP; {self.proxied} accepted through the proxy; "
            f"{self.disturbed} times refused without a fault"
        ]
        lines += [f"{count:6} times {why}" for why, count in self.refusals.most_common(SHOWN_REFUSALS)]
        for way, failovers_s in ("", self.failovers_s), (" through the proxy", self.proxied_failovers_s):
            everything = [each for times in failovers_s.values() for each in times]
            for fault, times in {**failovers_s, "all": everything}.items():
                if times:
                    lines.append(
                        f"{fault:6} {len(times):4} promotions, failover{way} median {statistics.median(times):.2f} s, "
                        f"worst {max(times):.2f} s"
                    )
        return "\n".join(lines)


class ElectedSoak:
    """One run over a group."""

    def __init__(self, group: ElectedGroup, seed: int, producers: int, *, shows_progress: bool) -> None:
        self._group = group
        self._random = random.Random(seed)
        self._ledgers = [SendLedger(f"producer-{number}") for number in range(producers)]
        self._stored_s = 0.0
        """When the last send that was stored had begun."""
        self._polls = Polls()
        self._pops = [
            PopLedger("pop", seed=seed),
            PopLedger("pop-in-order", orderly=True, seed=seed),
            PopLedger("pop-proxied", is_proxied=True, seed=seed),
        ]
        self._proxied_sends = ProxiedSends()
        self._is_quiet = False
        self._shows_progress = shows_progress
        self.result = SoakResult()

    async def run(self, promotions: int) -> SoakResult:
        """Run so many promotions, and check everything. AssertionError if a promise did not hold."""
        await self._group.create_topic(queues=4)
        # An error of a client that is no MQError ends the run: the task group raises it.
        proxied = Proxy(ConnectionOptions(self._group.namesrv), ProxyConfig(grpc_server_port=0))
        async with (
            Producer("soak", self._group.namesrv, retry_times=0) as producer,
            proxied as proxy,
            asyncio.TaskGroup() as clients,
        ):
            senders = [clients.create_task(self._send(ledger, producer)) for ledger in self._ledgers]
            reader = clients.create_task(self._polls.run(self._group.namesrv, SEND_PAUSE_S))
            senders.append(clients.create_task(self._proxied_sends.run(proxy.address, SEND_PAUSE_S)))
            pops = [
                clients.create_task(
                    ledger.run(proxy.address if ledger.is_proxied else self._group.namesrv, POP_MEMBERS)
                )
                for ledger in self._pops
            ]
            for number in range(promotions):
                await self._quiet()
                if number % ETCD_EACH == ETCD_EACH - 1:
                    await self._lose_etcd()
                fault = self._random.choice(FAULTS)
                seconds = await self._promote(fault)
                self.result.failovers_s.setdefault(fault, []).append(seconds)
                if self._shows_progress:
                    print(f"promotion {number + 1} of {promotions}: {fault}, {seconds:.2f} s", flush=True)
            await self._quiet()
            for task in senders:
                task.cancel()
            await asyncio.wait(senders)
            stored = await read_all(self._group.namesrv)
            await until(lambda: self._polls.have_all(stored), SETTLE_S)
            await until(lambda: all(ledger.have_all(stored) for ledger in self._pops), SETTLE_S)
            for task in (reader, *pops):
                task.cancel()
        await self._check(await read_all(self._group.namesrv))
        return self.result

    async def _send(self, ledger: SendLedger, producer: Producer) -> None:
        loop = asyncio.get_running_loop()
        while True:
            begin_s = loop.time()
            if isinstance(await ledger.send(producer), SendResult):
                self._stored_s = max(self._stored_s, begin_s)
            await asyncio.sleep(0 if self._is_quiet else SEND_PAUSE_S)

    async def _quiet(self) -> None:
        """Let producers send without any fault, and every send be answered with SEND_OK.

        On a machine that does too much, etcd may not answer in time; then once more.
        """
        loop, result = asyncio.get_running_loop(), self.result
        end_s = loop.time() + SETTLE_S
        while refused := await self._refused_in_quiet():
            result.disturbed += 1
            result.refusals.update(refused)
            if self._shows_progress:
                print(f"{len(refused)} sends refused without a fault, the first: {refused[0]}", flush=True)
            if loop.time() > end_s:
                raise AssertionError(f"not acknowledged without a fault: {result.refusals.most_common(SHOWN_REFUSALS)}")

    async def _refused_in_quiet(self) -> list[str]:
        """Wait until the group is complete, and let producers send without a pause; return what was refused."""
        await until(self._group.all_in_sync, SETTLE_S)
        self._is_quiet = True
        # What is in flight was possibly put before, so that it counts no more than the one after it.
        counts = [ledger.ended + 2 for ledger in self._ledgers]
        await until(lambda: all(map(ge, (ledger.ended for ledger in self._ledgers), counts)), SETTLE_S)
        others = [len(ledger.others) for ledger in self._ledgers]
        enough = sum(ledger.ended for ledger in self._ledgers) + QUIET_SENDS
        await until(lambda: sum(ledger.ended for ledger in self._ledgers) >= enough, SETTLE_S)
        self._is_quiet = False
        return [why for ledger, count in zip(self._ledgers, others, strict=True) for _, why in ledger.others[count:]]

    async def _promote(self, fault: str) -> float:
        """Take the master away; return the time until a message was stored by another one."""
        group, loop = self._group, asyncio.get_running_loop()
        first = await group.master()
        fault_s = loop.time()
        if fault == "kill":
            group.kill(first)
        elif fault == "pause":
            group.signal(first, signal.SIGSTOP)
        else:
            await asyncio.to_thread(group.brokers[first].stop)
        # A stopped or paused master stores nothing any more; in order, it may have until it had stopped.
        begin_s = loop.time()
        await until(lambda: self._stored_s > begin_s, SETTLE_S)
        seconds = loop.time() - fault_s
        await until(lambda: self._has_moved(first), SETTLE_S)
        await until(lambda: self._proxied_sends.stored_s > begin_s, SETTLE_S)
        self.result.proxied_failovers_s.setdefault(fault, []).append(loop.time() - fault_s)
        if fault == "pause":
            group.signal(first, signal.SIGCONT)
        else:
            await asyncio.to_thread(group.start, first)
        return seconds

    async def _has_moved(self, first: int) -> bool:
        return await self._group.master() != first

    async def _lose_etcd(self) -> None:
        """Kill etcd; the same master stores messages all the time."""
        group, loop = self._group, asyncio.get_running_loop()
        first = await group.master()
        await asyncio.to_thread(group.etcd.kill)
        end_s = loop.time() + ETCD_AWAY_S
        await until(lambda: self._stored_s > end_s, SETTLE_S)
        await asyncio.to_thread(group.etcd.start)
        assert await group.master() == first, "the loss of etcd changed the master"
        await until(group.all_in_sync, SETTLE_S)

    async def _check(self, stored: Stored) -> None:
        check_ledgers(self._ledgers, stored)
        self._polls.check(stored)
        self._proxied_sends.check(stored)
        for ledger in self._pops:
            ledger.check(stored)
        result, group = self.result, self._group
        result.acknowledged = sum(len(ledger.acknowledged) for ledger in self._ledgers)
        others = [what for ledger in self._ledgers for _, what in ledger.others]
        result.without_guarantee = sum(what.isupper() for what in others)
        result.failed = len(others) - result.without_guarantee
        result.polled = self._polls.count
        result.popped = sum(ledger.received for ledger in self._pops)
        result.proxied = len(self._proxied_sends.accepted)
        await group.stop()


async def soak(
    path: Path, promotions: int, brokers: int, producers: int, seed: int, *, shows_progress: bool = False
) -> SoakResult:
    """Run a soak in a directory."""
    with ExitStack() as stack:
        etcd = EtcdServer(path / "etcd")
        stack.callback(etcd.stop)
        group = ElectedGroup(path, stack, etcd, brokers, grpcServerPort="0")
        return await ElectedSoak(group, seed, producers, shows_progress=shows_progress).run(promotions)


def main() -> None:
    parser = argparse.ArgumentParser(description="Promotions under load, with a ledger as the judge.")
    parser.add_argument("--promotions", type=int, default=100)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--producers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="rucola-soak-ha-"))
    try:
        result = asyncio.run(
            soak(
                directory, options.promotions, options.brokers, options.producers, options.seed,
                shows_progress=not options.json,
            )
        )  # fmt: skip
    except BaseException:
        print(f"stores and logs are kept in {directory}", file=sys.stderr)
        raise
    shutil.rmtree(directory)
    if options.json:
        json.dump(vars(result), sys.stdout)
        print()
    else:
        print(result.text())


if __name__ == "__main__":
    main()
