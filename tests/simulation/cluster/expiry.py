"""Retention in a run: what the stores remove, with the contents and claims of that moment, and whether they may."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rucola.broker.broker import Broker
from rucola.broker.delivery.pop_log import PopQueue
from rucola.message.message import MessageExt
from rucola.message.record import decode
from rucola.store.message_store import MessageStore
from simulation.cluster.history import Position, group_of
from simulation.network import current_machine

if TYPE_CHECKING:
    from simulation.cluster.run import Run

ALL_HOURS = ";".join(f"{hour:02}" for hour in range(24))
NO_HOUR = "99"
HOUR_MS = 1000
"""How long an hour of fileReservedTime takes."""
MOST_USED = 75
"""diskMaxUsedSpaceRatio: above it, files expire at any hour."""
FORCED = 85
"""diskSpaceCleanForciblyRatio: above it, files expire at any age."""
ROUND_S = 2.0
"""cleanResourceInterval."""


def records(store: MessageStore, begin: int, end: int) -> Iterator[MessageExt]:
    """The messages of a part of a log."""
    physical_offset = store.next_record(begin)
    while physical_offset < end and (record := store.record_at(physical_offset)) is not None:
        yield decode(record)
        physical_offset = store.next_record(physical_offset + len(record))


class Expiry:
    """Notes in the history what the stores of a run remove. Its methods are called in the process of a broker."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.asked: set[str] = set()
        """Groups of brokers whose master an operator has asked to delete what is expired."""
        self._master_begins: dict[str, int] = {}
        """By group of brokers, how far a master's log was removed."""

    def expire(self, before: Callable[..., bool], store: MessageStore, now_ms: int, *, is_due: bool = True) -> bool:
        """Watch a call of `MessageStore.expire`."""
        begin, end = store.min_physical_offset, store.oldest_file_end
        oldest = list(records(store, begin, end)) if is_due else []
        result = before(store, now_ms, is_due=is_due)
        if store.min_physical_offset > begin:
            self._removed(store, oldest, end, now_ms)
        return result

    def _removed(self, store: MessageStore, messages: list[MessageExt], end: int, now_ms: int) -> None:
        run, name = self._run, current_machine()
        group, history = group_of(name), run.history
        run.transcript.add(name, f"deletes its log up to {store.min_physical_offset}: {len(messages)} messages")
        run.count("expire file")
        if store.min_physical_offset > end:
            history.broken.append(f"retention: {name} deletes more than its oldest file, up to {end}")
        if store.config.is_slave:
            if store.min_physical_offset > self._master_begins.get(group, 0):
                history.broken.append(f"retention: {name} deletes its log up to {end}, before its master")
        else:
            self._master_begins[group] = max(self._master_begins.get(group, 0), store.min_physical_offset)
            self._check_time(name, group, messages, now_ms, max(disk.percent for disk in store.disks))
        for message in messages:
            position = Position((message.topic, group, message.queue_id), message.queue_offset)
            body = message.body.decode(errors="replace")
            if history.gone.get(body) != position:  # else a slave removes what its master has
                history.expired[position] = body
            for each in self._groups(message.topic):
                if not self._is_claimed(name, each, position):
                    history.unclaimed[each].add(body)

    def _check_time(self, name: str, group: str, messages: list[MessageExt], now_ms: int, used: int) -> None:
        """Whether retention may delete a file now, with a disk of which so many per cent are in use."""
        run = self._run
        if not (run.plan.is_always_expiring or group in self.asked or used > MOST_USED):
            run.history.broken.append(f"retention: {name} deletes messages, and nothing has asked it to")
        newest_ms = max((message.store_timestamp for message in messages), default=0)
        has_jumped = any(group_of(machine) == group for machine, _ in run.history.clock_jumps)
        if now_ms - newest_ms < run.plan.reserved_s * HOUR_MS and used <= FORCED and not has_jumped:
            run.history.broken.append(f"retention: {name} deletes a message of {(now_ms - newest_ms) / 1000:.1f} s")

    def _groups(self, topic: str) -> list[str]:
        """The groups that consume a topic, or have it for what they failed with."""
        groups = dict.fromkeys((client.group, client.topic) for client in self._run.plan.clients if client.group)
        return [
            group for group, consumed in groups if topic in (consumed, f"%RETRY%{group}", f"%RETRY%{group}_{consumed}")
        ]

    def _is_claimed(self, name: str, group: str, position: Position) -> bool:
        """Whether the group has told the broker that it is done with a message."""
        broker = self._run.world.servers[name].server
        if not isinstance(broker, Broker) or broker.parts is None:
            return False
        (topic, _, queue_id), offset = position
        state = broker.parts.services.topics._state
        pop = state.pop.states.get(PopQueue(topic, group, queue_id))
        return pop.is_done(offset) if pop is not None else state.offsets.get(group, topic, queue_id) > offset

    def delete_queue(self, before: Callable[..., bool], store: MessageStore, topic: str, queue_id: int) -> bool:
        """Watch a call of `MessageStore.delete_queue`: the queue of that name starts at 0 again."""
        is_deleted = before(store, topic, queue_id)
        if is_deleted:
            name = current_machine()
            self._run.transcript.add(name, f"deletes queue {queue_id} of {topic}")
            self._run.count("expire queue")
            broker = self._run.world.servers[name].server
            parts = broker.parts if isinstance(broker, Broker) else None
            if parts is not None and parts.services.topics._state.topics.get(topic) is not None:
                self._run.history.broken.append(f"{name} deletes queue {queue_id} of {topic}, which exists")
            if not store.config.is_slave:
                self._run.history.restart((topic, group_of(name), queue_id))
        return is_deleted


def watched(on_call: Callable[[], Callable[..., Any] | None], call: Callable[..., Any]) -> Callable[..., Any]:
    """A method whose calls go through the function that `on_call` returns, if any."""

    def watching(*arguments: Any, **named: Any) -> Any:
        watch = on_call()
        return call(*arguments, **named) if watch is None else watch(call, *arguments, **named)

    return watching


__all__ = ["ALL_HOURS", "HOUR_MS", "NO_HOUR", "Expiry", "records", "watched"]
