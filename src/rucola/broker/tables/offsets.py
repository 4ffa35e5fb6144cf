"""Consumer offsets by topic, group and queue: `config/consumerOffset.json`, with enableLmq `lmqConsumerOffset.json`.

A consumer offset is the queue offset of the next message to consume. The table is written every
`flushConsumerOffsetInterval` and at the stop, not at every commit; after a crash, groups consume again the messages of
that interval. Negative offsets count as missing, since some clients commit -1 for "unknown".

After a power failure an offset may be beyond the end of its queue. `load` resets it to the end: new messages will reuse
the queue offsets in between, and must not be skipped.

A key of the file is `topic@group`. The first `@` separates: topics contain none (`Limits.check_offset` refuses commits
that would break this), groups that Apache's broker accepted may. Keys without topic or group are ignored. In
lmqConsumerOffset.json the offsets of groups named `%LMQ%...` are separate, without a queue id, which is 0.

The offsets of the group CID_RMQ_SYS_TRANS are the broker's progress with transactions. They need the log up to
`log_end`, and are removed if it ends earlier (see `broker.log_end`).

Corresponds to `ConsumerOffsetManager` and `LmqConsumerOffsetManager` of Apache RocketMQ 4.9.8. Deliberate differences:
Apache keeps offsets beyond the end, and with enableLmq it ignores an existing consumerOffset.json.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

from rucola import slices
from rucola.broker.log_end import is_ahead, log_end_of, with_log_end
from rucola.errors import StoreCorrupt
from rucola.message.topics import is_lmq
from rucola.store.config_files import ConfigFile, read_config
from rucola.store.features import LMQ_OFFSET_FILE

logger = logging.getLogger(__name__)

CONSUMER_OFFSET_FILE = "consumerOffset.json"
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
_SEPARATOR = "@"
_NONE: Mapping[int, int] = {}


def offset_paths(directory: Path, *, enable_lmq: bool) -> tuple[Path, Path | None]:
    """Return the file of consumer offsets in `config`, and the one that is read if it is missing."""
    usual = directory / CONSUMER_OFFSET_FILE
    return (directory / LMQ_OFFSET_FILE, usual) if enable_lmq else (usual, None)


class ConsumerOffsetTable:
    """Consumer offsets by topic, group and queue id. All methods must be called in one event loop."""

    def __init__(self, path: Path, before: Path | None = None) -> None:
        self._file = ConfigFile(path)
        self._before = before
        self._table: dict[str, dict[int, int]] = {}
        """By `topic@group`, then by queue id, as in the file."""
        self._count = 0
        self._topics_of: dict[str, dict[str, None]] = {}
        self._groups_of: dict[str, dict[str, None]] = {}
        self._log_end = 0
        """The end of the log that the offsets of CID_RMQ_SYS_TRANS need."""
        self._incarnation = secrets.token_hex(8)
        self._changes = 0
        self._written_changes = 0
        self._changed: dict[str, int] = {}
        """Last change of each `topic@group`, in the order of these changes."""

    def load(self, max_offset: Callable[[str, int], int] | None, log_end: int | None = None) -> None:
        """Load the file. Raises StoreCorrupt and OSError.

        `max_offset` returns the end of a queue; None keeps all offsets, for a slave, whose queues may end before its
        master's. `log_end` None keeps the progress with transactions.
        """
        path = self.source
        value = read_config(path)
        if value:
            table = parse_consumer_offsets(path, value)
            self._add(table)
            for key in table.keys() - self._table.keys():
                logger.warning("%s: the offsets of %r are ignored: it is not topic@group", path, key)
            self._log_end = log_end_of(value)
        if log_end is not None:
            exceeds = max_offset is not None and any(
                queue_offset > max_offset(topic, queue_id)
                for topic in self.topics_of(TRANSACTION_GROUP)
                for queue_id, queue_offset in self.of(TRANSACTION_GROUP, topic).items()
            )
            if is_ahead(path, self._log_end, log_end, exceeds_queue=exceeds):
                self.reset_transactions()
                slices.run(self.snapshot_steps())()
        if max_offset is None:
            return
        for key, queues in self._table.items():
            topic, _, group = _split(key)
            for queue_id, queue_offset in queues.items():
                if queue_offset > (end := max_offset(topic, queue_id)):
                    logger.warning(
                        "group %s: offset of %s:%d reset from %d to %d, the end of the queue",
                        group, topic, queue_id, queue_offset, end,
                    )  # fmt: skip
                    queues[queue_id] = end
                    self._changes += 1

    @property
    def source(self) -> Path:
        """The file that `load` reads: the one from before enableLmq, until there is this one."""
        path = self._file.path
        exists = path.exists() or path.with_name(path.name + ".bak").exists()
        return path if exists or self._before is None else self._before

    def get(self, group: str, topic: str, queue_id: int) -> int:
        """Return the committed offset, or -1 if there is none."""
        return self._table.get(topic + _SEPARATOR + group, _NONE).get(queue_id, -1)

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the committed offsets of a topic by queue id."""
        return self._table.get(topic + _SEPARATOR + group, _NONE)

    def __len__(self) -> int:
        return self._count

    @property
    def group_count(self) -> int:
        return len(self._topics_of)

    def has_group(self, group: str) -> bool:
        return group in self._topics_of

    def has(self, group: str, topic: str, queue_id: int) -> bool:
        """Return whether a group has an offset on a queue, even a negative one."""
        return queue_id in self._table.get(topic + _SEPARATOR + group, ())

    def commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Set the offset of a group, forward or backward."""
        key = topic + _SEPARATOR + group
        queues = self._table.get(key)
        if queues is None:
            queues = {}
            self._add({key: queues})
        present = queues.get(queue_id)
        if present != queue_offset:
            self._count += present is None
            queues[queue_id] = queue_offset
            self._changes += 1
            # Removed first, so that the key moves to the end of the dictionary and `changes_since` reads only its end.
            self._changed.pop(key, None)
            self._changed[key] = self._changes

    def merge(self, table: Mapping[str, dict[int, int]]) -> None:
        """Replace the offsets that the table of a master contains, but not the offsets of CID_RMQ_SYS_TRANS."""
        table = {key: queues for key, queues in table.items() if _split(key)[2] != TRANSACTION_GROUP}
        if any(self._table.get(key) != queues for key, queues in table.items()):
            self._add(table)
            self._changes += 1

    def commit_transactions(self, offsets: Mapping[str, int], log_end: int) -> None:
        """Set the offsets of CID_RMQ_SYS_TRANS by topic, which need the log up to `log_end`."""
        if any(self.get(TRANSACTION_GROUP, topic, 0) != queue_offset for topic, queue_offset in offsets.items()):
            self._log_end = log_end if any(offsets.values()) else 0
            for topic, queue_offset in offsets.items():
                self.commit(TRANSACTION_GROUP, topic, 0, queue_offset)

    def reset_transactions(self) -> None:
        self._log_end = 0
        self.remove_group(TRANSACTION_GROUP)

    def of(self, group: str, topic: str) -> dict[int, int]:
        """Return the non-negative offsets of a group on a topic by queue id."""
        queues = self._table.get(topic + _SEPARATOR + group, {})
        return {queue_id: queue_offset for queue_id, queue_offset in queues.items() if queue_offset >= 0}

    def remove_group(self, group: str) -> None:
        self._remove(group, self.topics_of(group))
        if self._topics_of.pop(group, None) is not None:
            self._changes += 1

    def remove_queue(self, topic: str, queue_id: int) -> None:
        """Remove the offsets of all groups on a deleted queue: a new one with its name starts at 0."""
        for group in self.groups_of(topic):
            queues = self._table[topic + _SEPARATOR + group]
            if queue_id in queues:
                self.commit(group, topic, queue_id, -1)  # so that it counts as a change
                self._count -= 1
                del queues[queue_id]
            if not queues:
                self._remove(group, [topic])
                del self._topics_of[group][topic]
                if not self._topics_of[group]:
                    del self._topics_of[group]

    def _remove(self, group: str, topics: Iterable[str]) -> None:
        for topic in topics:
            key = topic + _SEPARATOR + group
            self._count -= len(self._table.pop(key))
            self._changed.pop(key, None)
            groups = self._groups_of[topic]
            del groups[group]
            if not groups:
                del self._groups_of[topic]

    def topics_of(self, group: str) -> list[str]:
        return list(self._topics_of.get(group, ()))

    def groups_of(self, topic: str) -> list[str]:
        return list(self._groups_of.get(topic, ()))

    def _add(self, table: Mapping[str, dict[int, int]]) -> None:
        for key, queues in table.items():
            topic, _, group = _split(key)
            if not topic or not group:
                continue
            self._count += len(queues) - len(self._table.get(key, ()))
            if key not in self._table:
                self._topics_of.setdefault(group, {})[topic] = None
                self._groups_of.setdefault(topic, {})[group] = None
            self._table[key] = queues

    def table(self) -> Mapping[str, Mapping[int, int]]:
        """Return the table by `topic@group`, then queue id, as in GET_ALL_CONSUMER_OFFSET and the file."""
        return self._table

    @property
    def version(self) -> str:
        """The version of the table; another broker's, or one before a restart, never equals it."""
        return f"{self._incarnation}:{self._changes}"

    def changes_since(self, version: str | None) -> Mapping[str, Mapping[int, int]]:
        """Return the offsets of each `topic@group` with a change since `version`, or all; costs only the changes."""
        incarnation, _, number = (version or "").partition(":")
        if incarnation != self._incarnation or not number.isdecimal():
            return self._table
        changed: dict[str, Mapping[int, int]] = {}
        # From the last change back. With version 17, the keys whose last change has number 18 or more.
        for key in reversed(self._changed):
            if self._changed[key] <= int(number):
                break
            changed[key] = self._table[key]
        return changed

    def snapshot_steps(self) -> Generator[None, None, Callable[[], None]]:
        """Copy the table in small steps; return a function that writes the copy, if it has changed, in any thread.

        Offsets that change during the copy are in this copy or in the next.
        """
        changes = self._changes
        if changes == self._written_changes:
            return _nothing
        table: dict[str, dict[int, int]] = {}
        # Prepared before the copy: a copy that began later is newer, and is never replaced by this one.
        write = self._file.prepare_write(lambda: with_log_end(_document(table, self._file.path), log_end))
        for key in list(self._table):
            if (queues := self._table.get(key)) is not None:
                table[key] = dict(sorted(queues.items()))  # as Apache writes them
            yield
        log_end = self._log_end

        def persist() -> None:
            write()
            self._written_changes = max(self._written_changes, changes)

        return persist


def offset_key(group: str, topic: str) -> str:
    # The table itself concatenates: a call for each of the topics of a group would hold the loop for longer.
    return topic + _SEPARATOR + group


def _nothing() -> None:
    """Write nothing."""


def _split(key: str) -> tuple[str, str, str]:
    return key.partition(_SEPARATOR)


def _document(table: Mapping[str, dict[int, int]], path: Path) -> dict[str, Any]:
    if path.name != LMQ_OFFSET_FILE:
        return {"offsetTable": table}
    lmq = {key: queues[0] for key, queues in table.items() if is_lmq(_split(key)[2]) and queues.keys() == {0}}
    return {
        "lmqOffsetTable": lmq,
        "offsetTable": {key: queues for key, queues in table.items() if key not in lmq},
    }


def parse_consumer_offsets(source: Path | str, document: Any) -> dict[str, dict[int, int]]:
    """Parse the offsets of a file or response, by `topic@group`. Raises StoreCorrupt, which names `source`."""
    try:
        table = {
            key: {int(queue_id): int(queue_offset) for queue_id, queue_offset in queues.items()}
            for key, queues in document["offsetTable"].items()
        }
        of_lmq = {key: {0: int(queue_offset)} for key, queue_offset in document.get("lmqOffsetTable", {}).items()}
        return table | of_lmq
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreCorrupt(source, 0, f"not a table of consumer offsets ({error!r})") from None


def sound_offsets(document: Any) -> dict[str, Any] | None:
    """Return the file with its sound entries only, None without any; the others are logged."""
    sound: dict[str, dict[int, int]] = {}
    table = document.get("offsetTable") if isinstance(document, dict) else None
    for key, queues in table.items() if isinstance(table, dict) else ():
        for queue_id, queue_offset in queues.items() if isinstance(queues, dict) else ():
            try:
                sound.setdefault(key, {})[int(queue_id)] = int(queue_offset)
            except (TypeError, ValueError):
                logger.error("consumer offsets: %s, queue %r is lost: %r is no offset", key, queue_id, queue_offset)
        if not isinstance(queues, dict):
            logger.error("consumer offsets: %s is lost: %r is no table of queues", key, queues)
    return with_log_end({"offsetTable": sound}, log_end_of(document)) if sound else None
