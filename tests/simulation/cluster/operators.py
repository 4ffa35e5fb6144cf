"""Operators of a run whose work has several steps: promotion of a slave, and the removal of a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING

from rucola.admin import AdminClient
from rucola.broker.broker import Broker
from rucola.broker.mastership import Mastership
from rucola.errors import ConfigError, MQError
from rucola.message.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from rucola.store.message_store import MessageStore
from simulation.cluster.expiry import records
from simulation.cluster.history import Position, group_of
from simulation.cluster.plan import Fault
from simulation.cluster.world import Server
from simulation.network import current_machine

if TYPE_CHECKING:
    from simulation.cluster.run import Run

PURGE_PAUSE_S = 5.0
SETTLE_S = 120.0
"""How long operators try to get one master of each group, after the last fault."""
RETRY_S = 2.0
MOST_TRIES = 60
QUEUES = 4
"""Of the topic that is purged: as many as a producer gives one that does not exist."""


class Operators:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._changing: dict[str, asyncio.Lock] = {}
        """By group of brokers, held during a promotion."""
        self._old: dict[str, Broker] = {}
        """By group of brokers, the master that has ended, as its process saw it, while its slave is promoted."""

    @property
    def _has_forgetful_name_servers(self) -> bool:
        """Whether the name servers may not know of a newer master: then a former one must not start as master."""
        return any("namesrv" in fault.target + fault.other for fault in self._run.plan.faults)

    def _say(self, what: str) -> None:
        self._run.transcript.add("operator", what)

    def _group(self, name: str) -> list[Server]:
        servers = self._run.world.servers
        return [servers[each] for each in self._run.plan.brokers if group_of(each) == group_of(name)]

    async def _try(self, what: str, call: Callable[[AdminClient], Awaitable[object]]) -> MQError | None:
        """Give a command; return its error."""
        async with AdminClient(self._run.world.namesrv) as admin:
            try:
                await call(admin)
            except MQError as error:
                self._say(f"cannot {what}: {error}")
                return error
        self._say(f"could {what}")
        return None

    # Retention.

    async def expire(self, fault: Fault, chance: Random) -> None:
        address = self._run._address(group_of(fault.target))
        # Also if the answer is lost.
        self._run.expiry.asked.add(group_of(fault.target))
        await self._try(
            f"delete expired files of {address}", lambda admin: admin.brokers.delete_expired_commit_log(address)
        )

    async def use_disk(self, fault: Fault, chance: Random) -> None:
        run, server = self._run, self._run.world.servers[fault.target]
        server.disk_percent = chance.choice((80, 88, 88, 93))
        run.transcript.add(fault.target, f"has a disk that is {server.disk_percent} % full")
        await asyncio.sleep(fault.length_s)
        server.disk_percent = 1

    async def purge(self, fault: Fault, chance: Random) -> None:
        """Delete a topic that nobody uses any more, and create it again when its messages have expired."""
        run, topic = self._run, fault.target
        run.closed_topics.add(topic)
        consumers = [client for client in run.plan.clients if client.topic == topic and client.group]
        for client in consumers:
            await run.leave(client)
        end_s = run.loop.time() + fault.length_s
        await asyncio.sleep(PURGE_PAUSE_S)
        await self._try(f"delete {topic}", lambda admin: admin.topics.delete_on_name_servers(topic))
        while run.loop.time() < end_s:
            for number in range(run.plan.groups):
                address = run._address(f"broker-{number}")
                run.expiry.asked.add(f"broker-{number}")
                await self._try(
                    f"purge {topic} at {address}", lambda admin, address=address: _purge(admin, address, topic)
                )
            await asyncio.sleep(PURGE_PAUSE_S)
        for number in range(run.plan.groups):
            await self._create(topic, number)
        run.closed_topics.discard(topic)
        for client in consumers:
            run.start_client(client)

    async def _create(self, topic: str, number: int) -> None:
        run = self._run
        for _ in range(MOST_TRIES):
            if not await self._try(f"create {topic}", lambda admin: run._create(admin, number, topic, QUEUES)):
                return
            await asyncio.sleep(RETRY_S)

    # Roles.

    async def promote(self, fault: Fault, chance: Random) -> None:
        """Have the slave take the place of a master that has crashed, for which that is then a slave."""
        group, run = group_of(fault.target), self._run
        async with self._changing.setdefault(group, asyncio.Lock()):
            masters = [each for each in self._group(group) if each.server in run._masters()]
            slaves = [each for each in self._group(group) if each not in masters]
            if len(masters) != 1 or len(slaves) != 1:  # of a plan that was made smaller, or one is fenced
                return
            (old,), (new,) = masters, slaves
            was_slave = old.slave_id > 0 or old.name.endswith("-slave")
            if was_slave and self._has_forgetful_name_servers:
                self._say(f"leaves the roles of {group}: {old.name} could only start as master")
                return
            async with old.busy:
                async with new.busy:
                    is_done = await self._take_over(old, new, chance)
                if not is_done:
                    self._say(f"leaves the roles of {group} as they are")
                elif not was_slave and (self._has_forgetful_name_servers or chance.random() < 0.5):
                    old.slave_id = 2
                    self._say(f"sets brokerRole=SLAVE and brokerId={old.slave_id} for {old.name}")
                await asyncio.sleep(fault.length_s)
                run.loop.power_on(old.name)
                await old.start()
            await self._settle(group)

    async def _take_over(self, old: Server, new: Server, chance: Random) -> bool:
        run, group = self._run, group_of(old.name)
        ended = old.server
        if not isinstance(ended, Broker) or ended.parts is None or not _can_take_over(new.server, ended):
            old.end()
            return False
        self._old[group] = ended
        if chance.random() < 0.3:
            run.history.power_cuts.append((old.name, run.loop.time()))
            old.lose_power(chance)
        else:
            old.end()
        run.transcript.add(old.name, "has ended, and is not started again for now")
        await asyncio.sleep(chance.choice((0.0, 1.0, 5.0)))
        address = new.server.address
        error = await self._try(f"promote {new.name}", lambda admin: admin.roles.promote(address))
        if isinstance(error, ConfigError):
            error = await self._try(
                f"promote {new.name} by force", lambda admin: admin.roles.promote(address, force=True)
            )
        self._old.pop(group, None)
        return error is None

    def on_master(self, before: Callable[..., None], mastership: Mastership, epoch: int) -> None:
        """Watch the begin of an epoch: note what only the master before had, if that has crashed."""
        group = group_of(current_machine())
        if (old := self._old.pop(group, None)) is not None and old.parts is not None:
            self._note_set_aside(group, old.parts.storage.store, mastership._store)
        before(mastership, epoch)

    def _note_set_aside(self, group: str, old: MessageStore, new: MessageStore) -> None:
        history, plan = self._run.history, self._run.plan
        of_old, of_new = _contents(group, old), _contents(group, new)
        kept = set(of_new.values())
        for position, body in of_old.items():
            if of_new.get(position) != body and position not in history.expired:
                history.replace(position.queue, position.offset, position.offset + 1)
                if body not in kept:
                    self._run.transcript.add(group, f"the old master alone has {body} at {position}")
                    if not plan.is_sync_master:
                        history.set_aside.add(body)
                    if position.queue[0].startswith(("%", SCHEDULE_TOPIC, TIMER_TOPIC)):
                        history.lost_copies.add(body)

    async def switch_over(self, fault: Fault, chance: Random) -> None:
        run, server = self._run, self._run.world.servers[fault.target]
        if not run.plan.elected and server.server in run._masters():
            server = next(each for each in self._group(fault.target) if each is not server)
        target = server.server
        assert isinstance(target, Broker)
        await self._try(f"make {server.name} master", lambda admin: admin.roles.switch_over(target.address))

    async def settle_roles(self) -> None:
        """After the last fault, let each group have a master, and its other broker follow that."""
        if self._run.has_role_changes:
            for number in range(self._run.plan.groups):
                await self._settle(f"broker-{number}")

    async def replace_slaves(self) -> None:
        """Remove the store of a slave that needs what retention has deleted of its master's log, as that asks for."""
        run = self._run
        for name in run.plan.brokers if run.plan.reserved_s else ():
            server, master = run.world.servers[name], run.master_of(name)
            brokers = [each.server for each in (server, master) if each is not None]
            stores = [each.parts.storage.store for each in brokers if isinstance(each, Broker) and each.parts]
            if len(stores) == 2 and stores[0].max_physical_offset < stores[1].min_physical_offset:
                self._say(f"lets {name} begin with an empty store")
                async with server.busy:
                    await server.stop()
                    server.lose_disk()
                    await server.start()

    async def _settle(self, group: str) -> None:
        end_s, without = self._run.loop.time() + SETTLE_S, 0
        while self._run.loop.time() < end_s:
            brokers = [each.server for each in self._group(group) if isinstance(each.server, Broker) and each.process]
            running = [broker for broker in brokers if broker.parts is not None]
            masters = [broker for broker in running if _is_accepting(broker)]
            others = [broker for broker in running if broker not in masters and not broker.store_config.is_slave]
            if len(masters) == 1 and len(running) == 2 and not others:
                return
            if len(masters) == 1:
                for each in others:
                    address = each.address
                    await self._try(f"demote {address}", lambda admin, to=address: admin.roles.demote(to, force=True))
            elif not masters and len(running) == len(self._group(group)):
                without += 1
                if without > 5:
                    best = max(running, key=_position).address
                    await self._try(f"promote {best}", lambda admin, to=best: admin.roles.promote(to, force=True))
            await asyncio.sleep(RETRY_S)


async def _purge(admin: AdminClient, address: str, topic: str) -> None:
    await admin.topics.delete_on_broker(address, topic)
    await admin.brokers.delete_expired_commit_log(address)
    await admin.brokers.clean_expired_consume_queues(address)
    await admin.brokers.clean_unused_topics(address)


def _contents(group: str, store: MessageStore) -> dict[Position, str]:
    return {
        Position((message.topic, group, message.queue_id), message.queue_offset): message.body.decode(errors="replace")
        for message in records(store, store.min_physical_offset, store.max_physical_offset)
    }


def _can_take_over(slave: object, master: Broker) -> bool:
    """Whether a broker is a slave, and not so far behind that it has to be replaced."""
    assert master.parts is not None
    if not isinstance(slave, Broker) or slave.parts is None or not slave.store_config.is_slave:
        return False
    return slave.parts.storage.store.max_physical_offset >= master.parts.storage.store.min_physical_offset


def _is_accepting(broker: Broker) -> bool:
    assert broker.parts is not None
    storage = broker.parts.storage
    return not broker.store_config.is_slave and storage.mastership.is_valid and storage.store.is_accepting


def _position(broker: Broker) -> tuple[int, int]:
    assert broker.parts is not None
    position = broker.parts.storage.mastership.position
    return position.epoch, position.end
