"""One run of a plan: servers, clients and faults, then the healing, and what must be true after it."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from rucola.admin import AdminClient
from rucola.broker.broker import Broker
from rucola.coordination.write_lease import WriteLease
from rucola.domain.topic import TopicConfig
from rucola.errors import MQError
from rucola.message.record import decode
from rucola.message.topics import TIMER_TOPIC
from rucola.store.directory_reader import StoreReader
from rucola.store.tools.check import check
from simulation.cluster.clients import Program
from simulation.cluster.etcd import Etcd
from simulation.cluster.expiry import Expiry
from simulation.cluster.growth import sizes
from simulation.cluster.history import History, Position, group_of
from simulation.cluster.operators import QUEUES, Operators
from simulation.cluster.plan import PASSING, Client, Fault, Plan
from simulation.cluster.world import BROKER_PORT, Server, World, simulated_world
from simulation.network import SimulatedLoop, current_machine, on_machine

if TYPE_CHECKING:
    from simulation.cluster.archiver import Archiver
    from simulation.cluster.shop import Shop

DRAIN_S = 240.0
"""After the last fault, how long at most until everything is delivered."""
FIRST_ELECTION_S = 60.0
SETTLE_S = 30.0
"""After the last client, how long servers may keep what was for it."""
MOST_KEPT = 100
"""Items of one table or queue; the largest that is no state has an item for each kind of request."""
BOUNDED = {
    "PutDurations._last": "an item for each duration in milliseconds",
    "PutDurations._current": "the same",
    "MappedFileQueue.files": "the log of a run in which files expire has small files",
    "TimerMessageService._near": "a slave keeps the next 16,384 timer messages, until it is master",
}
"""What may have more items, and why."""
LOOK_S = 5.0
MOST_JOB_CALLS = 45_000
"""Calls of functions after which an archive job may be ended; most jobs need fewer."""
CONSUMERS = ("push", "orderly", "broadcast", "pop", "pull", "picky", "billing")
SETTINGS = {
    "transactionCheckInterval": ("2000", "9000"),
    "slaveTimeout": ("500", "5000"),
    "syncFlushTimeout": ("1000", "9000"),
    "longPollingEnable": ("false", "true"),
}
"""What operators change, and to what."""


@dataclass
class Outcome:
    """What came of a run."""

    plan: Plan
    broken: list[str]
    transcript: list[str]
    simulated_s: float
    cpu_s: float
    counts: Counter[str]
    """How often clients' operations had each result, and faults were injected."""

    def text(self) -> str:
        """The whole story."""
        return "\n".join([*self.plan.describe(), *self.transcript, *(f"BROKEN: {each}" for each in self.broken)]) + "\n"


class Run:
    """The state that clients, faults and checkers share."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.plan = world.plan
        self.loop: SimulatedLoop = world.loop
        self.transcript = world.transcript
        self.history = History(is_sync_flush=world.plan.is_sync_flush, is_elected=world.plan.elected > 0)
        world.on_right = self._has_right
        self.counts: Counter[str] = Counter()
        self.is_sending = True
        self.topic_queues = world.plan.queues
        self.programs: dict[str, Program] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.last_masters: dict[str, Server] = {}
        """Whom each slave followed at the end."""
        self._active_faults: Counter[str] = Counter()
        self.closed_topics: set[str] = set()
        """To which nobody sends, since an operator purges them."""
        self.has_role_changes = not world.plan.elected and any(
            fault.kind in ("promote", "switchover") for fault in world.plan.faults
        )
        self.expiry = Expiry(self)
        self.operators = Operators(self)
        if world.plan.reserved_s:
            world.watches |= {"expire": self.expiry.expire, "delete_queue": self.expiry.delete_queue}
        if self.has_role_changes:
            world.watches["begin"] = self.operators.on_master
        self.archiver: Archiver | None = None
        self.shop: Shop | None = None
        """The databases of a run that has such clients."""

    def count(self, operation: str) -> None:
        """Count an operation, and its pairs with the faults that last."""
        self.counts[operation] += 1
        for kind, number in self._active_faults.items():
            if number:
                self.counts[f"{operation} × {kind}"] += 1

    def broker_at(self, address: str) -> str:
        port = int(address.rpartition(":")[2])
        return f"broker-{(port - BROKER_PORT) // 10}"

    # Clients.

    def start_client(self, client: Client) -> None:
        machine = self.world.client(client.name)
        process = machine.begin()
        program = self.programs[client.name] = Program(self, client, process)
        if client.kind == "broadcast":
            machine.directory.mkdir(exist_ok=True)
        self.tasks[client.name] = machine.run(program.live())

    async def leave(self, client: Client) -> None:
        """Let a client close; it is ended if that takes too long."""
        self.programs[client.name].leaving.set()
        task = self.tasks[client.name]
        await asyncio.wait([task], timeout=60)
        machine = self.world.machines[client.name]
        if not task.done():
            self.history.broken.append(f"{client.name} does not close")
        elif task.exception() is not None:
            raise task.exception()  # type: ignore[misc]
        self.loop.end(machine.process)
        self._ended(machine.process)

    def _ended(self, process: str) -> None:
        self.history.ended(process)
        if self.shop is not None:
            self.shop.ended(process)

    # The run.

    async def live(self) -> None:
        world, plan = self.world, self.plan
        for server in world.servers.values():
            await server.start()
        if plan.elected:
            async with asyncio.timeout(FIRST_ELECTION_S):
                while not self._masters():  # noqa: ASYNC110 - brokers do not notify of it
                    await asyncio.sleep(1)
        await self._create_topics()
        for client in plan.clients:
            self.start_client(client)
        begin_s = self.loop.time()
        faults = [asyncio.create_task(self._inject(fault, begin_s)) for fault in plan.faults]
        await asyncio.sleep(plan.length_s)
        self.is_sending = False
        self.transcript.add("", "clients stop to send")
        for task in faults:
            await task
        self.transcript.add("", "the last fault is healed")
        await self.operators.settle_roles()
        await self._drain()
        for name, program in self.programs.items():
            self._check_sizes(name, program.using)
        for client in plan.clients:
            await self.leave(client)
        await asyncio.sleep(SETTLE_S)
        for name, server in world.servers.items():
            self._check_sizes(name, server.server)
        self._read_logs()  # until its end a client may have read what came after everything was delivered
        if self.shop is not None:
            self.history.broken += self.shop.check()
        self.last_masters = {name: master for name in world.servers if (master := self.master_of(name)) is not None}
        await self._stop_servers()
        if self.archiver is not None:
            self._archive_all(self.archiver)

    async def _create_topics(self) -> None:
        async with AdminClient(self.world.namesrv) as admin:
            for number in range(self.plan.groups):
                for topic in self.plan.topics:
                    await self._create(admin, number, topic, QUEUES if topic == PASSING else self.plan.queues)

    async def _create(self, admin: AdminClient, number: int, topic: str, queues: int) -> None:
        config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
        await admin.topics.create_or_update(self._address(f"broker-{number}"), config)

    def _check_sizes(self, name: str, kept: object) -> None:
        """Nothing grows with the number of messages."""
        for what, size in sizes(kept).items():
            if size > MOST_KEPT and what not in BOUNDED:
                self.history.broken.append(f"{name} keeps {size} items in {what} when there is nothing to do")

    async def _stop_servers(self) -> None:
        # Slaves have all of the log before their masters stop, and etcd outlives all brokers.
        servers = list(reversed(self.world.servers.values()))
        masters = [server for server in servers if server.server in self._masters()]
        slaves = [server for server in servers if isinstance(server.server, Broker) and server not in masters]
        others = [server for server in servers if server not in masters + slaves]
        for server in slaves + masters + others:
            await server.stop()

    async def _drain(self) -> None:
        begin_s = self.loop.time()
        waiting: list[str] = []
        while self.loop.time() < begin_s + DRAIN_S:
            await asyncio.sleep(LOOK_S)
            await self.operators.replace_slaves()
            waiting = self._waiting()
            if not waiting:
                self.transcript.add("", f"everything is delivered after {self.loop.time() - begin_s:.0f} s")
                return
        self.history.broken += [f"after {DRAIN_S:.0f} s, {each}" for each in waiting]

    def _masters(self) -> list[Broker]:
        """The brokers that are master; of a group with an election none, while its members elect one."""
        return [
            server.server
            for server in self.world.servers.values()
            if isinstance(server.server, Broker)
            and not server.server.store_config.is_slave
            and (not self.plan.elected or self._epoch(server.server) > 0)
            and not self._is_fenced(server.server)
        ]

    def _epoch(self, broker: Broker) -> int:
        return 0 if broker.parts is None else broker.parts.storage.mastership.epoch

    def _is_fenced(self, broker: Broker) -> bool:
        return broker.parts is not None and broker.parts.storage.mastership.fenced_by > 0

    def _has_right(self, lease: WriteLease) -> None:
        """A broker may acknowledge: nobody else of its group may."""
        name = current_machine()
        holders = [
            each
            for each, server in self.world.servers.items()
            if isinstance(server.server, Broker)
            and server.process
            and server.server._coordination.lease.until_s > self.loop.time()
        ]
        broker = self.world.servers[name].server
        assert isinstance(broker, Broker)
        if name in holders and broker._coordination.lease is lease and (epoch := self._epoch(broker)):
            self.history.acknowledges(group_of(name), name, epoch, [each for each in holders if each != name])

    def _waiting(self) -> list[str]:
        """What clients still have to get."""
        self._read_logs()
        history, waiting = self.history, []
        if len(self._masters()) < self.plan.groups:
            waiting.append("a group has no master")
        for group, topic in dict.fromkeys((client.group, client.topic) for client in self.plan.clients if client.group):
            is_consumer = any(client.group == group and client.kind in CONSUMERS for client in self.plan.clients)
            missing = history.missing(group, topic) if is_consumer else []
            if missing:
                waiting.append(f"group {group} has not got {len(missing)} messages of {topic}, such as {missing[0]}")
        if self.shop is not None:
            waiting += self.shop.waiting()
        bodies = {*history.ever().values(), *history.gone}
        for sent in history.sent.values():
            if sent.acked_s is None or sent.body in bodies or history.may_be_lost(sent):
                continue
            if sent.delay_s:
                waiting.append(f"delayed {sent.body} is not in the log")
            elif sent.decision == "commit":
                waiting.append(f"committed {sent.body} is not in the log")
        for name, server in self.world.servers.items():
            master = self.master_of(name)
            if master is not None and not self.may_differ(name):
                ends = [_end(each) for each in (server.server, master.server)]
                if ends[0] != ends[1]:
                    waiting.append(f"the log of {name} ends at {ends[0]}, and its master's at {ends[1]}")
        return waiting

    def master_of(self, slave: str) -> Server | None:
        """The master that a broker follows; None for a master itself, and for other servers."""
        if self.plan.elected and slave in self.plan.brokers:
            masters = [server for server in self.world.servers.values() if server.server in self._masters()]
            return None if not masters or masters[0].name == slave else masters[0]
        if not self.plan.has_slaves or slave not in self.plan.brokers:
            return None
        masters = [self.world.servers[broker] for broker in self._master_names() if group_of(broker) == group_of(slave)]
        return None if not masters or masters[0].name == slave else masters[0]

    def _master_names(self) -> list[str]:
        masters = self._masters()
        return [name for name, server in self.world.servers.items() if server.server in masters]

    def may_differ(self, slave: str) -> bool:
        """Whether a master may lack what its slave has: then the slave keeps that, and waits for an operator."""
        if self.plan.elected:
            return False
        # With SYNC_FLUSH as well: a slave gets what its master has not flushed yet.
        return any(group_of(broker) == group_of(slave) for broker, _ in self.history.power_cuts)

    def _read_logs(self) -> None:
        """Read the queues of the masters, without a request."""
        log, dead = self.history.log, self.history.dead
        log.clear()
        dead.clear()
        for broker in self._masters():
            if broker.parts is None:
                continue
            store = broker.parts.storage.store
            for topic in self.plan.topics:
                for queue_id in range(64):
                    self._read_queue(store, (topic, broker.config.broker_name, queue_id), log)
            self._read_queue(store, ("%DLQ%g-picky", broker.config.broker_name, 0), dead)

    def _read_queue(self, store: Any, queue: tuple[str, str, int], into: dict[Position, str]) -> None:
        topic, _, queue_id = queue
        offset = store.min_offset(topic, queue_id)
        while True:
            result = store.get(topic, queue_id, offset, 32)
            if not result.records:
                return
            for record in result.records:
                message = decode(record)
                into[Position(queue, message.queue_offset)] = message.body.decode()
            offset = result.next_begin_offset

    # Faults.

    async def _inject(self, fault: Fault, begin_s: float) -> None:
        await asyncio.sleep(begin_s + fault.at_s - self.loop.time())
        chance = Random(f"{self.plan.seed}/fault/{fault.number}")
        inject: dict[str, Callable[[Fault, Random], Coroutine[Any, Any, None]]] = {
            "kill": self._kill,
            "restart": self._restart,
            "power": self._cut_power,
            "crash": self._crash,
            "leave": self._leave_and_come,
            "pause": self._pause,
            "cut": self._cut,
            "half-cut": self._cut,
            "reset": self._reset,
            "clock": self._jump,
            "full": self._fill,
            "eio": self._fail_sync,
            "offsets": self._reset_offsets,
            "topic": self._change_topic,
            "lease": self._end_leases,
            "switchover": self.operators.switch_over,
            "redrive": self._redrive,
            "config": self._change_config,
            "expire": self.operators.expire,
            "usage": self.operators.use_disk,
            "promote": self.operators.promote,
            "purge": self.operators.purge,
            "locked": self._lock_databases,
            "archive": self._archive,
        }
        self.transcript.add("FAULT", str(fault))
        self.counts[f"fault {fault.kind}"] += 1
        self._active_faults[fault.kind] += 1
        await inject[fault.kind](fault, chance)
        self._active_faults[fault.kind] -= 1

    def _client(self, name: str) -> Client:
        return next(client for client in self.plan.clients if client.name == name)

    async def _kill(self, fault: Fault, chance: Random) -> None:
        server = self.world.servers[fault.target]
        async with server.busy:
            server.end()
            await asyncio.sleep(fault.length_s)
            await server.start()

    async def _restart(self, fault: Fault, chance: Random) -> None:
        server = self.world.servers[fault.target]
        async with server.busy:
            await server.stop()
            await server.start()

    async def _cut_power(self, fault: Fault, chance: Random) -> None:
        server = self.world.servers[fault.target]
        async with server.busy:
            ended = server.server
            is_master = self.plan.elected > 0 or (isinstance(ended, Broker) and not ended.store_config.is_slave)
            if is_master or self.has_role_changes:
                self.history.power_cuts.append((fault.target, self.loop.time()))
            before = self._ends(server)
            kind = server.lose_power(chance)
            self.transcript.add(fault.target, f"has lost its power; its disk keeps {kind}")
            await asyncio.sleep(fault.length_s)
            self.loop.power_on(fault.target)
            await server.start()
            for (topic, queue_id), end in before.items():
                if (begin := server.recovered.get((topic, queue_id), 0)) < end and is_master:
                    self.history.replace((topic, group_of(fault.target), queue_id), begin, end)
                    self.transcript.add(fault.target, f"has lost {topic} {queue_id} from {begin} to {end}")
                    if not self.plan.is_sync_flush:
                        self._note_lost_copies(ended, topic, queue_id, begin)

    def _note_lost_copies(self, ended: Any, topic: str, queue_id: int, begin: int) -> None:
        """Note what was to be delivered again or later, in the files as the ended process still sees them."""
        if topic.startswith(("%", "SCHEDULE", TIMER_TOPIC)):
            for record in ended.parts.storage.store.get(topic, queue_id, begin, 1000).records:
                self.history.lost_copies.add(decode(record).body.decode())

    def _ends(self, server: Server) -> dict[tuple[str, int], int]:
        """The end of each queue of a broker."""
        broker = server.server
        if not isinstance(broker, Broker) or broker.parts is None:
            return {}
        return {name: end for name, (_, end) in broker.parts.storage.store.queues().items()}

    async def _crash(self, fault: Fault, chance: Random) -> None:
        with suppress(StopIteration):
            client, machine = self._client(fault.target), self.world.machines[fault.target]
            async with machine.busy:
                process = machine.process
                machine.end()
                self._ended(process)
                await asyncio.sleep(fault.length_s)
                self.start_client(client)

    async def _leave_and_come(self, fault: Fault, chance: Random) -> None:
        with suppress(StopIteration):
            client, machine = self._client(fault.target), self.world.machines[fault.target]
            async with machine.busy:
                await self.leave(client)
                self.start_client(client)

    async def _pause(self, fault: Fault, chance: Random) -> None:
        machine = self.world.machines.get(fault.target)
        if machine is None:
            return
        async with machine.busy:
            self.loop.pause(machine.process)
            self._disturb(fault.target, fault.length_s)
            await asyncio.sleep(fault.length_s)
            self.loop.resume(machine.process)

    async def _cut(self, fault: Fault, chance: Random) -> None:
        ways = [(fault.target, fault.other)]
        if fault.kind == "cut":
            ways.append((fault.other, fault.target))
        for way in ways:
            self.loop.cut(*way)
        for each in (fault.target, fault.other):
            self._disturb(each, fault.length_s)
        await asyncio.sleep(fault.length_s)
        if chance.random() < 0.5:
            self.loop.reset_connections(fault.target, fault.other)
        for way in ways:
            self.loop.heal(*way)

    def _disturb(self, machine: str, length_s: float) -> None:
        for name in {machine, group_of(machine)} if machine in self.plan.brokers else {machine}:
            self.history.disturbed[name] = max(self.history.disturbed[name], self.loop.time() + length_s)

    async def _reset(self, fault: Fault, chance: Random) -> None:
        count = self.loop.reset_connections(fault.target, fault.other)
        self.transcript.add("", f"{count} connections break")

    async def _jump(self, fault: Fault, chance: Random) -> None:
        self.history.clock_jumps.append((fault.target, self.loop.time() + abs(fault.length_s)))
        self.history.disturbed[fault.target] = self.loop.time()
        self.loop.clock_offsets[fault.target] += fault.length_s

    async def _fill(self, fault: Fault, chance: Random) -> None:
        server = self.world.servers[fault.target]
        server.disk_error = errno.ENOSPC
        await asyncio.sleep(fault.length_s)
        server.disk_error = 0

    async def _fail_sync(self, fault: Fault, chance: Random) -> None:
        server = self.world.servers[fault.target]
        async with server.busy:
            server.sync_error, began_s = errno.EIO, self.loop.time()
            await asyncio.sleep(chance.uniform(0.5, 5))
            server.sync_error = 0
            server.end()
            await server.start()
            self.history.failed_syncs.append((fault.target, began_s, self.loop.time()))

    async def _reset_offsets(self, fault: Fault, chance: Random) -> None:
        topics = [client.topic for client in self.plan.clients if client.group == fault.target]
        if not topics:  # of a plan that was made smaller
            return
        self.history.resets.append((fault.target, self.loop.time()))
        async with AdminClient(self.world.namesrv) as admin:
            try:
                for queue in await admin.topics.queues(topics[0]):
                    begin, _ = await admin.offsets.ends(self._address(queue.broker_name), queue)
                    await admin.offsets.reset(fault.target, queue, begin)
            except MQError as error:
                self.transcript.add("operator", f"cannot reset offsets: {error}")

    def _address(self, group: str) -> str:
        """The address of a group's master, or of some broker of it while there is none."""
        for broker in self._masters():
            if broker.config.broker_name == group:
                return broker.address
        return f"127.0.0.1:{BROKER_PORT + 10 * int(group.rpartition('-')[2]) + 3 * (self.plan.elected > 0)}"

    async def _redrive(self, fault: Fault, chance: Random) -> None:
        async with AdminClient(self.world.namesrv) as admin:
            try:
                async for result in admin.dead_letters.redrive(fault.target, only_group=True):
                    body = result.message.body.decode()
                    self.transcript.add("operator", f"sends the dead letter {body} again: {result.status.name}")
                    if result.has_copy:
                        self.history.redriven[fault.target].add(body)
            except MQError as error:
                self.transcript.add("operator", f"cannot send the dead letters of {fault.target} again: {error}")

    async def _change_config(self, fault: Fault, chance: Random) -> None:
        key, values = chance.choice(list(SETTINGS.items()))
        value = chance.choice(values)
        address = self._address(group_of(fault.target))
        async with AdminClient(self.world.namesrv) as admin:
            try:
                await admin.brokers.update_config(address, {key: value})
                self.transcript.add("operator", f"sets {key} = {value} at {address}")
            except MQError as error:
                self.transcript.add("operator", f"cannot set {key} at {address}: {error}")

    async def _lock_databases(self, fault: Fault, chance: Random) -> None:
        if self.shop is not None:  # else the plan was made smaller
            await self.shop.lock(fault.length_s)

    async def _archive(self, fault: Fault, chance: Random) -> None:
        server = self.world.servers[fault.target]
        last_call = chance.choice((0, chance.randrange(1, MOST_JOB_CALLS)))
        is_compacting = chance.random() < 0.2
        assert self.archiver is not None
        if is_compacting:
            self._archived(self.archiver.compact(last_call))
        elif server.process and isinstance(server.server, Broker) and server.server.parts is not None:
            self._archived(self.archiver.archive(fault.target, server.directory, last_call))

    def _archived(self, said: str) -> None:
        self.transcript.add("archiver", said.replace(str(self.world.root), ""))

    def _archive_all(self, archiver: Archiver) -> None:
        """Archive what is left, and look at the table."""
        stores = {name: self.world.servers[name].directory for name in self.plan.brokers}
        for name, store in stores.items():
            self._archived(archiver.archive(name, store))
        cut = {group_of(broker) for broker, _ in self.history.power_cuts}
        wrong = sorted(name for name in archiver.refused if group_of(name) not in cut)
        self.history.broken += [f"archive: the log of {name} is not archived any more" for name in wrong]
        self.history.broken += archiver.check(stores)

    async def _end_leases(self, fault: Fault, chance: Random) -> None:
        etcd = self.world.servers["etcd"]
        if isinstance(etcd.server, Etcd) and etcd.process:
            with on_machine(etcd.process):
                self.transcript.add("etcd", f"ends {etcd.server.revoke_all()} leases")

    async def _change_topic(self, fault: Fault, chance: Random) -> None:
        if fault.target != "plain":
            return
        # Never fewer: nobody reads what is in a queue that a topic has no more.
        queues = self.topic_queues = max(self.topic_queues, chance.randrange(self.plan.queues, self.plan.queues + 3))
        async with AdminClient(self.world.namesrv) as admin:
            try:
                for number in range(self.plan.groups):
                    await self._create(admin, number, fault.target, queues)
                self.transcript.add("operator", f"{fault.target} has {queues} queues")
            except MQError as error:
                self.transcript.add("operator", f"cannot change {fault.target}: {error}")


def _end(server: Any) -> int:
    return -1 if server.parts is None else int(server.parts.storage.store.max_physical_offset)


class _Log(logging.Handler):
    """Takes the program's warnings into the transcript."""

    def __init__(self, world: World, level: int) -> None:
        super().__init__(level)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage().replace(str(self._world.root), "")
        self._world.transcript.add(current_machine(), f"{record.levelname.lower()}: {text}")
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            self._world.transcript.add(current_machine(), f"  {type(error).__name__}: {error}")
            self._world.events["logged exceptions"] += 1


def simulate(plan: Plan, root: Path, *, log_level: int = logging.WARNING) -> Outcome:
    """Run a plan. `root` must not exist, and is removed at the end."""
    began_s = time.process_time()
    logger = logging.getLogger("rucola")
    with simulated_world(plan, root) as world, pytest.MonkeyPatch.context() as patch:
        run = Run(world)
        if plan.has_shop:
            from simulation.cluster.shop import Shop

            run.shop = Shop(run, patch)
        if plan.has_archive:
            from simulation.cluster.archiver import Archiver

            run.archiver = Archiver(root / "lake", plan.seed)
        handler = _Log(world, log_level)
        logger.addHandler(handler)
        logger.setLevel(log_level)
        logger.propagate = False
        unexpected: list[str] = []

        def on_exception(loop: Any, context: dict[str, Any]) -> None:
            error = context.get("exception")
            unexpected.append(f"unhandled: {context['message']}: {type(error).__name__}: {error}")

        world.loop.set_exception_handler(on_exception)
        asyncio.set_event_loop(world.loop)
        try:
            world.loop.run_until_complete(run.live())
            broken = run.history.check()
            for server in world.servers.values():
                if server.directory.exists():
                    broken += [f"check of {server.name}: {finding}" for finding in check(server.directory)]
            broken += _compare_logs(run)
        finally:
            logger.removeHandler(handler)
        broken += unexpected
        broken = [each.replace(str(root), "") for each in broken]
        counts = run.counts + world.events
        return Outcome(plan, broken, world.transcript.lines, world.loop.time(), time.process_time() - began_s, counts)


def _compare_logs(run: Run) -> list[str]:
    """The logs of a master and its slave are equal."""
    broken = []
    for name, server in run.world.servers.items():
        master = run.last_masters.get(name)
        if master is not None and not run.may_differ(name):
            logs = []
            for each in (master, server):
                with StoreReader(each.directory) as reader:
                    logs.append([(message.physical_offset, message.topic, message.body) for message in reader.walk()])
            own = {message[0]: message for message in logs[1]}
            begin = min(own, default=0)  # a slave may have begun later than its master, or have deleted less
            if any(own.get(message[0]) != message for message in logs[0] if message[0] >= begin):
                broken.append(f"the logs of {master.name} and {name} differ")
    return broken
