"""Clients that join, leave and crash: every acknowledged message must reach every group.

    python benchmarks/soak.py [--minutes 10] [--clients 200] [--without-locks] [--seed 1] [--churn-minutes 5]
                              [--chaos-minutes 5]

`rucola standalone` runs in a process of its own. A client process has four producers and two consumers of each of five
groups, two of which consume by POP; one of either kind consumes in order. A client runs for some seconds, closes and is
replaced by a new one; every few seconds a whole process is killed, with its messages in flight, and another is started.
Some messages fail at their first delivery and are retried.

Every process writes a ledger: a line before a message is sent (`t`), one after it was acknowledged (`a`), one when a
group's listener has completed it (the group's name), with the time. Each line is written before the next step, so a
killed process leaves no line about a step that it did not take. At the end, producers stop and consumers continue until
there is no backlog. Then, of the messages by their names,

    acknowledged, but not delivered to a group     none, or the run fails
    delivered, but never sent                      none
    delivered to one group and not to another      none
    completed in order by POP, and overtaken       none
    delivered more often than once                 counted: in flight when its consumer crashed

In the second part topics and groups come and go on a broker whose log expires at once: its descriptors, mappings,
directories and memory must stay level. A third part follows, in which the network fails: `tests/support/chaos/run.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from rucola.admin import AdminClient
from rucola.client import ConsumeFromWhere, Message, MessageExt, Producer, PullConsumer, PushConsumer, select_by_hash
from rucola.client.consumer.options import ConsumeKeywords
from rucola.domain.topic import TopicConfig
from rucola.errors import MQError
from rucola.message.properties import SHARDING_KEY
from rucola.store.tools.check import check
from servers import Server, standalone

TOPIC = "Soak"
QUEUES = 24
POP: ConsumeKeywords = {"pop": True, "consume_timeout_ms": 5000}
GROUPS: dict[str, ConsumeKeywords] = {
    "cooks": {},
    "clerks": {},
    "judges": {"orderly": True},
    "porters": POP,
    "ushers": {**POP, "orderly": True},
}
WITHOUT_LOCKS = [group for group in GROUPS if group != "judges"]
IN_ORDER_BY_POP = "ushers"
PRODUCERS = 4
CONSUMERS = 2
SEND_PAUSE_S = 0.2
LIFE_S = (3.0, 30.0)
KILL_INTERVAL_S = 5.0
FAILS_EACH = 500
"""One of this number of messages fails at its first delivery."""
CHURN_TOPICS = 8
CHURN_QUEUES = 8
CHURN_BODY = os.urandom(16 * 1024)
CHURN_CONF = """
mappedFileSizeCommitLog = 1048576
fileReservedTime = 0
deleteWhen = 00;01;02;03;04;05;06;07;08;09;10;11;12;13;14;15;16;17;18;19;20;21;22;23
cleanResourceInterval = 1000
deleteCommitLogFilesInterval = 10
"""
DRAIN_S = 180.0
READY_S = 60.0


# The client process. --------------------------------------------------------------------------------------------------


class Host:
    """Some clients and their ledger, until SIGTERM or a kill."""

    def __init__(self, namesrv: str, name: str, ledger: Path, groups: list[str], producers: int) -> None:
        self._namesrv = namesrv
        self._name = name
        self._ledger = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._groups = groups
        self._producer_count = producers
        self._random = random.Random(name)
        self._count = self._lives = 0
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stopping.set)
        lives: list[Callable[[], Awaitable[None]]] = [self._produce] * self._producer_count
        lives += [partial(self._consume, group) for group in self._groups for _ in range(CONSUMERS)]
        await asyncio.gather(*map(self._one_after_the_other, lives))

    def _note(self, what: str, message: str) -> None:
        os.write(self._ledger, f"{what} {message} {time.monotonic_ns()}\n".encode())

    async def _life(self) -> None:
        """Wait for the lifetime of one client."""
        try:
            await asyncio.wait_for(self._stopping.wait(), self._random.uniform(*LIFE_S))
        except TimeoutError:
            pass

    async def _one_after_the_other(self, live: Callable[[], Awaitable[None]]) -> None:
        """Run one client after the other. If one fails to start, on a busy machine, the next one follows."""
        while not self._stopping.is_set():
            try:
                await live()
            except MQError as error:
                print(f"{self._name}: {error}", file=sys.stderr)

    async def _produce(self) -> None:
        """Run one producer for its lifetime."""
        async with Producer("producers", self._namesrv) as producer:
            sending = asyncio.create_task(self._send(producer))
            await self._life()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send(self, producer: Producer) -> None:
        self._lives += 1
        life = f"{self._name}.{self._lives}"
        queue = select_by_hash(life)
        while True:
            self._count += 1
            message = f"{life}-{self._count}"
            self._note("t", message)
            try:
                properties = {SHARDING_KEY: life}
                await producer.send(Message(TOPIC, message.encode(), keys=message, properties=properties), queue)
                self._note("a", message)
            except MQError as error:
                print(f"{self._name}: {error}", file=sys.stderr)
            await asyncio.sleep(self._random.uniform(0, 2 * SEND_PAUSE_S))

    async def _consume(self, group: str) -> None:
        """Run one consumer for its lifetime."""

        def listen(message: MessageExt) -> None:
            name = message.body.decode()
            if message.reconsume_times == 0 and int(name.rpartition("-")[2]) % FAILS_EACH == FAILS_EACH - 1:
                raise RuntimeError(f"{name} fails at its first delivery, on purpose")
            self._note(group, name)

        consumer = PushConsumer(
            group,
            self._namesrv,
            **GROUPS[group],
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            suspend_current_queue_ms=100,
        )
        consumer.subscribe(TOPIC)
        consumer.listen(listen)
        async with consumer:
            await self._life()


# The driver, which starts and kills client processes. -----------------------------------------------------------------


class Soak:
    """A server, its client processes, and their ledgers."""

    def __init__(self, directory: Path, server: Server, groups: list[str], seed: int) -> None:
        self._directory = directory
        self._server = server
        self._groups = groups
        self._random = random.Random(seed)
        self._hosts: list[subprocess.Popen[bytes]] = []
        self._started = 0
        self.crashes = 0

    def start_host(self, producers: int = PRODUCERS) -> None:
        self._started += 1
        name = f"h{self._started}"
        arguments = [
            self._server.namesrv, name, self._directory / f"{name}.ledger", ",".join(self._groups), producers,
        ]  # fmt: skip
        with (self._directory / f"{name}.log").open("wb") as log:
            command = [sys.executable, __file__, "--host", *map(str, arguments)]
            self._hosts.append(subprocess.Popen(command, stderr=log))

    def crash_one(self) -> None:
        """Kill one client process, and start another one."""
        host = self._hosts.pop(self._random.randrange(len(self._hosts)))
        host.kill()
        host.wait()
        self.crashes += 1
        self.start_host()

    def stop_hosts(self) -> None:
        """Close all clients. A process that has no clients yet just ends."""
        hosts, self._hosts = self._hosts, []
        for host in hosts:
            host.send_signal(signal.SIGTERM)
        codes = {host.wait(60) for host in hosts}
        if codes - {0, -signal.SIGTERM}:
            raise RuntimeError(f"processes of clients ended with {codes}; their logs are in {self._directory}")

    def kill_hosts(self) -> None:
        for host in self._hosts:
            host.kill()
            host.wait()

    def ledger(self) -> dict[str, Counter[str]]:
        """The number of lines of each message in the ledgers, by kind of line."""
        found: dict[str, Counter[str]] = {what: Counter() for what in ("t", "a", *self._groups)}
        for path in self._directory.glob("*.ledger"):
            for line in path.read_text(encoding="utf-8").splitlines():
                what, message, _ = line.split(" ")
                found[what][message] += 1
        return found

    def completions(self, group: str) -> dict[str, int]:
        """When each message was first completed."""
        found: dict[str, int] = {}
        for path in self._directory.glob("*.ledger"):
            for line in path.read_text(encoding="utf-8").splitlines():
                what, message, time_ns = line.split(" ")
                if what == group:
                    found[message] = min(int(time_ns), found.get(message, sys.maxsize))
        return found

    def wait(self, seconds: float, is_enough: Callable[[], bool]) -> bool:
        """Check a condition every second; return False after the timeout."""
        deadline = time.monotonic() + seconds
        while not is_enough():
            if time.monotonic() > deadline:
                return False
            time.sleep(1)
        return True

    def is_in_motion(self) -> bool:
        """Whether every group has completed a message, so that all kinds of clients are running."""
        ledger = self.ledger()
        return all(ledger[group] for group in self._groups)

    def is_drained(self) -> bool:
        """Whether every group has completed all acknowledged messages, and committed its offsets."""
        ledger = self.ledger()
        return (
            all(ledger["a"].keys() <= ledger[group].keys() for group in self._groups) and asyncio.run(self._lag()) == 0
        )

    async def create_topic(self) -> None:
        async with AdminClient(self._server.namesrv) as admin:
            config = TopicConfig(topic_name=TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
            await admin.topics.create_or_update(f"127.0.0.1:{self._server.port}", config)

    async def stored(self) -> int:
        async with AdminClient(self._server.namesrv) as admin:
            ends = await admin.topics.stats(TOPIC)
        return sum(end.max_offset - end.min_offset for end in ends.values())

    async def _lag(self) -> int:
        async with AdminClient(self._server.namesrv) as admin:
            stats = [await admin.groups.consume_stats(group) for group in self._groups]
        places = [place for one in stats for place in one.offset_table.values()]
        return sum(place.broker_offset - place.consumer_offset for place in places)


def findings(ledger: dict[str, Counter[str]], stored: int) -> list[str]:
    """Return the differences between the ledgers."""
    found = []
    groups = ledger.keys() - {"t", "a"}
    everything = set().union(*(ledger[group] for group in groups))
    for group in sorted(groups):
        delivered = ledger[group].keys()
        if missing := ledger["a"].keys() - delivered:
            found.append(f"{len(missing)} acknowledged messages did not come to {group}: {sorted(missing)[:5]}")
        if invented := delivered - ledger["t"].keys():
            found.append(f"{len(invented)} messages that nobody sent came to {group}: {sorted(invented)[:5]}")
        if lost := everything - delivered:
            found.append(f"{len(lost)} messages came to others and not to {group}: {sorted(lost)[:5]}")
    if stored < len(everything):
        found.append(f"{len(everything)} messages were delivered, and only {stored} are stored")
    return found


def out_of_order(acknowledged: Iterable[str], completions: dict[str, int]) -> list[str]:
    """Return the differences between the order in which producers sent and that in which a group completed."""
    numbers: dict[str, list[int]] = {}
    for message in acknowledged:
        life, _, number = message.rpartition("-")
        numbers.setdefault(life, []).append(int(number))
    found = []
    for life, of_life in numbers.items():
        names = [f"{life}-{number}" for number in sorted(of_life)]
        names = [name for name in names if name in completions]
        if late := [after for before, after in pairwise(names) if completions[after] < completions[before]]:
            found.append(f"{len(late)} messages of {life} were completed before an earlier one: {late[:5]}")
    return found


def soak(minutes: float, clients: int, groups: list[str], seed: int) -> list[str]:
    """Run once; return the differences between the ledgers."""
    with tempfile.TemporaryDirectory(prefix="rucola-soak-") as root, ExitStack() as stack:
        directory, store = Path(root), Path(root) / "store"
        server = stack.enter_context(standalone(store))
        run = Soak(directory, server, groups, seed)
        stack.callback(run.kill_hosts)
        asyncio.run(run.create_topic())
        clients_a_host = PRODUCERS + CONSUMERS * len(groups)
        for _ in range(max(1, clients // clients_a_host)):
            run.start_host()
        if not run.wait(READY_S, run.is_in_motion):
            return [f"after {READY_S:.0f} s some group had got nothing"]
        begin, memory = time.monotonic(), server.memory()["anonymous"]
        end = begin + minutes * 60
        while time.monotonic() < end:
            time.sleep(min(KILL_INTERVAL_S, max(0.0, end - time.monotonic())))
            run.crash_one()
        print(f"{run.crashes} processes of {clients_a_host} clients were killed", flush=True)
        run.stop_hosts()
        run.start_host(producers=0)
        drained = run.wait(DRAIN_S, run.is_drained)
        run.stop_hosts()
        ledger, stored = run.ledger(), asyncio.run(run.stored())
        print(f"sent {len(ledger['t'])}, acknowledged {len(ledger['a'])}, stored {stored}")
        for group in groups:
            deliveries = ledger[group]
            print(f"{group}: delivered {len(deliveries)}, {deliveries.total() - len(deliveries)} of them again")
        end = server.memory()["anonymous"]
        print(f"private memory of the server: {memory:.0f} MB at the beginning, {end:.0f} MB at the end")
        found = findings(ledger, stored)
        if IN_ORDER_BY_POP in groups:
            found += out_of_order(ledger["a"], run.completions(IN_ORDER_BY_POP))
        if not drained and not found:
            found.append(f"after {DRAIN_S:.0f} s the groups had not committed the end of their queues")
        server.stop()
        found += [str(problem) for problem in check(store)]
        return found


class Usage(NamedTuple):
    """What a server with its store takes."""

    descriptors: float
    mappings: float
    directories: float
    megabytes: float


USAGE_SLACK = Usage(descriptors=32, mappings=64, directories=CHURN_TOPICS * CHURN_QUEUES, megabytes=8)
"""By how much the usage may be greater in the last third of the rounds than in the second, beside GROWTH."""
GROWTH = 1.2
"""A short run has not levelled off on a fast machine; what is never freed grows by half."""


def usage(server: Server, store: Path) -> Usage:
    process = Path(f"/proc/{server.pid}")
    return Usage(
        len(list((process / "fd").iterdir())),
        len((process / "maps").read_text().splitlines()),
        sum(not directories for _, directories, _ in os.walk(store / "consumequeue")),  # some are being deleted
        server.memory()["anonymous"],
    )


async def churn_round(server: Server, number: int) -> None:
    """Create topics and groups, send to each queue, consume some of it, and delete them."""
    address = f"127.0.0.1:{server.port}"
    names = [f"Churn-{number}-{topic}" for topic in range(CHURN_TOPICS)]
    async with AdminClient(server.namesrv) as admin, Producer("churn", server.namesrv) as producer:
        for name in names:
            config = TopicConfig(topic_name=name, read_queue_nums=CHURN_QUEUES, write_queue_nums=CHURN_QUEUES)
            await admin.topics.create_or_update(address, config)
            queues = await admin.topics.queues(name)
            await asyncio.gather(*(producer.send(Message(name, CHURN_BODY, keys=name), queue) for queue in queues))
            async with PullConsumer(f"{name}-group", server.namesrv) as consumer:
                await consumer.pull(queues[0], 0)
                await consumer.commit(queues[0], 1)
        for name in names:
            await admin.topics.delete_on_broker(address, name)
            await admin.topics.delete_on_name_servers(name)
            await admin.groups.delete(address, f"{name}-group", remove_offset=True)


def churn(minutes: float) -> list[str]:
    """Run the second part; return what grew."""
    with tempfile.TemporaryDirectory(prefix="rucola-churn-") as root:
        store = Path(root) / "store"
        with standalone(store, conf=CHURN_CONF) as server:
            end, rounds = time.monotonic() + minutes * 60, list[Usage]()
            while time.monotonic() < end or len(rounds) < 9:
                asyncio.run(churn_round(server, len(rounds)))
                rounds.append(usage(server, store))
        third = len(rounds) // 3
        before, after = Usage(*map(max, *rounds[third:-third])), Usage(*map(max, *rounds[-third:]))
        print(f"{len(rounds)} rounds of topics and groups: {before}, then {after}", flush=True)
        found = [
            f"{name} grew from {was:.0f} to {now:.0f}"
            for name, was, now, slack in zip(Usage._fields, before, after, USAGE_SLACK, strict=True)
            if now > was * GROWTH + slack
        ]
        return found + [str(problem) for problem in check(store)]


def chaos(minutes: float, seed: int) -> bool:
    """Run the third part in a process of its own, as it has modules of the same names; return its success."""
    tests = Path(__file__).resolve().parents[1] / "tests"
    command = [sys.executable, "-m", "support.chaos.run", "--minutes", str(minutes), "--seed", str(seed)]
    return subprocess.run(command, cwd=tests, env={**os.environ, "PYTHONPATH": str(tests)}).returncode == 0


def main() -> None:
    if sys.argv[1:2] == ["--host"]:
        namesrv, name, ledger, groups, producers = sys.argv[2:]
        asyncio.run(Host(namesrv, name, Path(ledger), groups.split(","), int(producers)).run())
        return
    parser = argparse.ArgumentParser(description="Clients that come, go and crash; nothing acknowledged may be lost.")
    parser.add_argument("--minutes", type=float, default=10, help="how long clients come and go (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=200, help="how many there are at a time (default: %(default)s)")
    parser.add_argument(
        "--without-locks",
        action="store_true",
        help="no group that locks queues: its locks outlive a crash by a minute",
    )
    parser.add_argument("--seed", type=int, default=1, help="which processes are killed (default: %(default)s)")
    for part in ("churn", "chaos"):
        parser.add_argument(
            f"--{part}-minutes", type=float, default=5, help="length of that part, 0 for none (default: %(default)s)"
        )
    arguments = parser.parse_args()
    chosen = WITHOUT_LOCKS if arguments.without_locks else list(GROUPS)
    found = soak(arguments.minutes, arguments.clients, chosen, arguments.seed)
    print("\n".join(found) or "the ledger balances", flush=True)
    if arguments.churn_minutes:
        grown = churn(arguments.churn_minutes)
        print("\n".join(grown) or "the server takes what it took", flush=True)
        found += grown
    is_well = not found
    if arguments.chaos_minutes:
        is_well &= chaos(arguments.chaos_minutes, arguments.seed)
    sys.exit(not is_well)


if __name__ == "__main__":
    main()
