"""Chaos: clients of every kind, while the network between them and their servers misbehaves; nothing may be lost.

    python -m support.chaos.run [--minutes 5] [--seed 1] [--quick]        with tests/ on PYTHONPATH

Two name servers and two brokers run as processes of `rucola`, each behind a proxy (`support.proxy`), and three
processes of clients (`support.chaos.clients`), which reach the servers through the proxies only. Phases follow each
other:

    1. a fault begins
    2. what must go on in spite of it goes on: so many more messages acknowledged, and consumed by every group, at every
       broker that the fault leaves, or that clients have to reconnect to
    3. the fault ends
    4. everything goes on: likewise at every broker

No phase lasts a set time; one that does not reach its counts in PHASE_S is a finding. In the end producers stop, the
consumers get what is left, the ledger is balanced (`support.chaos.ledger`) and the stores are checked.

The short run goes through all faults once. A long one continues with faults at random, and kills processes of clients.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rucola.admin import AdminClient
from rucola.domain.topic import TopicConfig
from rucola.store.tools.check import check
from support.chaos.clients import GROUPS, IN_ORDER, TOPIC
from support.chaos.ledger import ACKNOWLEDGED, Account
from support.proxy import Proxy
from support.servers import Server, server

BROKERS = ["broker-a", "broker-b"]
NAME_SERVERS = ["namesrv-a", "namesrv-b"]
HOST, PROXY_HOST = "127.0.0.1", "127.0.0.2"
QUEUES = 4
STEP = 25
"""How many more messages are to be acknowledged, and consumed by each group, at each broker."""
LONG_STEP = 200
"""Likewise, while a fault lasts from which clients cannot recover by reconnecting: longer than their timeouts."""
PHASE_S = 60.0
PHASE_WITH_DEATHS_S = 150.0
"""The locks of a member that was killed expire after a minute."""
DRAIN_S = 120.0
POLL_S = 0.05
ADDRESS = re.compile(r"127\.0\.0\.[12]:(\d+)")
COMPLAINTS = re.compile(r"Traceback|never retrieved|was destroyed but it is pending| ERROR ")


class Client:
    """A process of clients."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self.log = log

    async def stop(self) -> list[str]:
        """Let it close its clients; return what went wrong in its life."""
        code = self.process.returncode
        if code is None:
            self.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(60):
                code = await self.process.wait()
        else:
            code = f"{code}, though it was not told to"
        found = [line for line in self.log.read_text().splitlines() if COMPLAINTS.search(line)]
        return [f"{self.log.name}: {line}" for line in found] + (
            [f"{self.log.name}: ended with {code}"] if code else []
        )

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


def port_of(running: Server) -> int:
    address = ADDRESS.search(running.first_line)
    assert address, running.log.read_text()
    return int(address[1])


@dataclass
class Chaos:
    """One run: servers, their proxies, clients and the account of what they did."""

    directory: Path
    quick: bool
    seed: int
    proxies: dict[str, Proxy] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._ledgers = self.directory / "ledgers"
        self._ledgers.mkdir()
        self._account = Account(self._ledgers, GROUPS, IN_ORDER)
        self._servers: dict[str, Server] = {}
        self._clients: dict[str, Client] = {}
        self._started = 0
        self._brokers: dict[str, str] = {}
        self._phase_s = PHASE_S
        self._last = ("", "")

    # Servers and clients.

    async def start(self, stack: AsyncExitStack) -> None:
        processes = stack.enter_context(ExitStack())
        addresses = []
        for name in NAME_SERVERS:
            addresses.append(self._start_server(processes, name, "namesrv", bindAddress=HOST, listenPort="0"))
        for name in BROKERS:
            self._start_server(
                processes, name, "broker", brokerName=name, brokerIP1=PROXY_HOST, bindAddress=HOST, listenPort="0",
                haListenPort="0", namesrvAddr=";".join(addresses), storePathRootDir=str(self.directory / name),
                mappedFileSizeCommitLog=str(1 << 20), mappedFileSizeConsumeQueue="20000", maxHashSlotNum="1000",
                maxIndexNum="4000",
            )  # fmt: skip
        for name, running in self._servers.items():
            port = port_of(running)
            proxy = Proxy(f"{HOST}:{port}", host=PROXY_HOST, port=port)
            self.proxies[name] = await stack.enter_async_context(proxy)
        self._brokers = {self.proxies[name].address: name for name in BROKERS}
        async with AdminClient(addresses[0]) as admin:
            config = TopicConfig(topic_name=TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
            for address in self._brokers:
                await admin.topics.create_or_update(address, config)
        stack.push_async_callback(self._kill_clients)
        await self.start_client("producers")
        for _ in range(2):
            await self.start_client("consumers")

    def _start_server(self, processes: ExitStack, name: str, command: str, **settings: str) -> str:
        conf = self.directory / f"{name}.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        running = processes.enter_context(server(command, "-c", conf, log=self.directory / f"{name}.log"))
        self._servers[name] = running
        return f"{HOST}:{port_of(running)}"

    async def start_client(self, role: str) -> None:
        self._started += 1
        name = f"{role}{self._started}"
        namesrv = ";".join(self.proxies[name].address for name in NAME_SERVERS)
        arguments = [role, name, namesrv, str(self._ledgers), *(["--quick"] if self.quick else [])]
        log = self.directory / f"{name}.log"
        with log.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "support.chaos.clients", *arguments, stdout=asyncio.subprocess.PIPE, stderr=stderr
            )
        self._clients[name] = Client(process, log)
        assert process.stdout is not None
        await process.stdout.readline()  # from now on it takes signals

    async def stop_clients(self, role: str) -> None:
        for name in [name for name in self._clients if name.startswith(role)]:
            self.findings += await self._clients.pop(name).stop()

    async def replace_consumers(self, *, kill: bool = False) -> None:
        """Let another process of consumers take the place of the oldest."""
        name = next(name for name in self._clients if name.startswith("consumers"))
        client = self._clients.pop(name)
        if kill:
            self._phase_s = PHASE_WITH_DEATHS_S
            await client.kill()
        else:
            self.findings += await client.stop()
        await self.start_client("consumers")

    async def _kill_clients(self) -> None:
        for client in self._clients.values():
            await client.kill()

    # Progress.

    def _counts(self) -> Counter[tuple[str, str]]:
        self._account.read()
        counts: Counter[tuple[str, str]] = Counter()
        for (what, broker), count in self._account.counts.items():
            counts[what, self._brokers.get(broker, broker)] += count
        return counts

    async def goes_on(self, brokers: Iterable[str] = BROKERS, step: int = STEP) -> bool:
        """Wait until all clients have done so much more at each of these brokers."""
        begin = self._counts()
        goals = {(what, broker): begin[what, broker] + step for what in (ACKNOWLEDGED, *GROUPS) for broker in brokers}

        def lacking() -> dict[tuple[str, str], int]:
            counts = self._counts()
            found = {key: goal - counts[key] for key, goal in goals.items() if counts[key] < goal}
            self._last = next(iter(found), self._last)
            return found

        return await self._reached(lambda: not lacking(), lambda: f"lacking are {lacking()}", self._phase_s)

    async def _reached(self, is_enough: Callable[[], bool], why: Callable[[], str], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not is_enough():
            ended = [name for name, client in self._clients.items() if client.process.returncode is not None]
            if ended or time.monotonic() > deadline:
                reason = f"{', '.join(ended)} ended" if ended else f"nothing goes on after {seconds:.0f} s"
                self.findings.append(f"{reason}: {why()}")
                return False
            await asyncio.sleep(POLL_S)
        return True

    async def phase(self, name: str, fault: Callable[[Chaos], Awaitable[None]]) -> None:
        begin, known = time.monotonic(), len(self.findings)
        await fault(self)
        self.findings[known:] = [f"{name}: {finding}" for finding in self.findings[known:]]
        print(f"{time.monotonic() - begin:5.1f} s  {name}; the last to go on was {' at '.join(self._last)}", flush=True)

    async def end(self) -> None:
        """Stop the clients when nothing is left to consume, and check ledger and stores."""
        await self.stop_clients("producers")
        await self._reached(lambda: not self._missing(), lambda: f"not consumed are {self._missing()}", DRAIN_S)
        await self.stop_clients("consumers")
        self._account.read()
        self.findings += self._account.findings()
        for name, running in reversed(self._servers.items()):
            if code := await asyncio.to_thread(running.stop):
                self.findings.append(f"{name} ended with {code}")
        for name in BROKERS:
            self.findings += [f"store of {name}: {problem}" for problem in check(self.directory / name)]
        print(self._account, flush=True)

    def _missing(self) -> dict[str, int]:
        self._account.read()
        return {group: len(names) for group, names in self._account.missing.items()}

    def any_broker(self) -> str:
        return self._random.choice(BROKERS)


# Faults. --------------------------------------------------------------------------------------------------------------


async def calm(chaos: Chaos) -> None:
    await chaos.goes_on()


async def half_open_broker(chaos: Chaos) -> None:
    """Clients find out, reconnect, and go on at the same broker."""
    chaos.proxies[chaos.any_broker()].half_open()
    await chaos.goes_on()


async def half_open_everything(chaos: Chaos) -> None:
    for proxy in chaos.proxies.values():
        proxy.half_open()
    await chaos.goes_on()


async def delays(chaos: Chaos) -> None:
    for proxy in chaos.proxies.values():
        proxy.delay_ms = 30
    await chaos.goes_on()
    for proxy in chaos.proxies.values():
        proxy.delay_ms = 0


async def frozen_broker(chaos: Chaos) -> None:
    """A broker hangs, as if stopped: the other one is served meanwhile, and then both are."""
    hanging = chaos.any_broker()
    chaos.proxies[hanging].freeze()
    await chaos.goes_on([name for name in BROKERS if name != hanging], LONG_STEP)
    chaos.proxies[hanging].thaw()
    await chaos.goes_on()


async def broken_connections(chaos: Chaos) -> None:
    for proxy in chaos.proxies.values():
        proxy.reset()
    await chaos.goes_on()
    for proxy in chaos.proxies.values():
        proxy.cut()
    await chaos.goes_on()


async def unreachable_broker(chaos: Chaos) -> None:
    away = chaos.any_broker()
    chaos.proxies[away].refuse()
    await chaos.goes_on([name for name in BROKERS if name != away], LONG_STEP)
    await chaos.proxies[away].accept()
    await chaos.goes_on()


async def frozen_name_server(chaos: Chaos) -> None:
    """One of two hangs. Members that come now ask either first, and join all the same."""
    hanging = chaos._random.choice(NAME_SERVERS)
    chaos.proxies[hanging].freeze()
    await chaos.replace_consumers()
    await chaos.goes_on()
    chaos.proxies[hanging].thaw()


async def dead_consumers(chaos: Chaos) -> None:
    await chaos.replace_consumers(kill=True)
    await chaos.goes_on()


async def dead_producers(chaos: Chaos) -> None:
    name = next(name for name in chaos._clients if name.startswith("producers"))
    await chaos._clients.pop(name).kill()
    await chaos.start_client("producers")
    await chaos.goes_on()


GENTLE = [
    calm, half_open_broker, delays, frozen_broker, broken_connections, unreachable_broker, frozen_name_server,
    half_open_everything,
]  # fmt: skip
DEADLY = [dead_consumers, dead_producers]


@asynccontextmanager
async def running(quick: bool, seed: int) -> AsyncIterator[Chaos]:
    with tempfile.TemporaryDirectory(prefix="rucola-chaos-") as root:
        async with AsyncExitStack() as stack:
            chaos = Chaos(Path(root), quick, seed)
            await chaos.start(stack)
            yield chaos


async def run(minutes: float, seed: int, *, quick: bool) -> list[str]:
    """Go through all faults once, and on at random until the time is over; return what was found."""
    async with running(quick, seed) as chaos:
        end = time.monotonic() + minutes * 60
        for fault in GENTLE:
            await chaos.phase(fault.__name__, fault)
        choices = random.Random(seed)
        while time.monotonic() < end and not chaos.findings:
            fault = choices.choice(GENTLE + DEADLY)
            await chaos.phase(fault.__name__, fault)
        await chaos.end()
        if chaos.findings:
            for log in sorted(chaos.directory.glob("*.log")):
                print(f"--- the end of {log.name}\n{log.read_text()[-3000:]}", file=sys.stderr)
        return chaos.findings


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Clients on a network that misbehaves; nothing acknowledged may be lost."
    )
    parser.add_argument("--minutes", type=float, default=0, help="how long faults go on (default: each fault once)")
    parser.add_argument("--seed", type=int, default=1, help="which faults come, and where (default: %(default)s)")
    parser.add_argument(
        "--quick", action="store_true", help="clients notice half-open connections sooner than by default"
    )
    arguments = parser.parse_args()
    found = asyncio.run(run(arguments.minutes, arguments.seed, quick=arguments.quick))
    print("\n".join(found) or "nothing was lost")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
