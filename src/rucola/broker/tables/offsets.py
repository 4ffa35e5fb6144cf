"""How far each group has come in each queue: `config/consumerOffset.json`.

The offset is the queue offset of the next message to consume. Consumers commit often, so the table is written every
`flushConsumerOffsetInterval` and at the end, not at every commit: after a crash, groups go back by what they
consumed in that time. A negative offset counts as none, since some clients commit -1 for "unknown".

A power cut can take messages that a group has consumed and not its offset, which then lies behind the end of its queue.
It is set back to the end when the table is read: other messages will get the places in between, and none is passed
over.

Answers to `ConsumerOffsetManager` of Apache RocketMQ 4.9.8. Deliberate difference: Apache leaves such offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rucola.errors import StoreCorrupt
from rucola.store.config_files import ConfigFile

logger = logging.getLogger(__name__)

_SEPARATOR = "@"


class ConsumerOffsetTable:
    """Queue offsets by topic, group and queue id."""

    def __init__(self, path: Path) -> None:
        self._file = ConfigFile(path)
        self._table: dict[str, dict[int, int]] = {}
        self._is_changed = False

    def load(self, max_offset: Callable[[str, int], int] | None) -> None:
        """Read what was written. StoreCorrupt where the file cannot be read.

        `max_offset` tells where a queue of a topic ends; None lets all offsets be, as for a slave, whose queues may end
        before its master's.
        """
        value = self._file.read()
        if value:
            self._table = parse_consumer_offsets(self._file.path, value)
        if max_offset is None:
            return
        for key, queues in self._table.items():
            topic, _, group = _split(key)
            for queue_id, queue_offset in queues.items():
                if queue_offset > (end := max_offset(topic, queue_id)):
                    logger.warning(
                        "group %s: its offset on %s:%d is %d, and the queue ends at %d; it goes on there",
                        group, topic, queue_id, queue_offset, end,
                    )  # fmt: skip
                    queues[queue_id] = end
                    self._is_changed = True

    def get(self, group: str, topic: str, queue_id: int) -> int:
        """The committed offset, or -1 where there is none."""
        return self._table.get(topic + _SEPARATOR + group, {}).get(queue_id, -1)

    def commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Note the group's progress; forward or, after a reset, backward."""
        queues = self._table.setdefault(topic + _SEPARATOR + group, {})
        if queues.get(queue_id) != queue_offset:
            queues[queue_id] = queue_offset
            self._is_changed = True

    def merge(self, table: Mapping[str, dict[int, int]]) -> None:
        """Note what a master has noted. What groups have here of topics that it does not name stays."""
        if any(self._table.get(key) != queues for key, queues in table.items()):
            self._table.update(table)
            self._is_changed = True

    def of(self, group: str, topic: str) -> dict[int, int]:
        """The committed offsets of a group on a topic, by queue id, a copy; negative ones left out."""
        queues = self._table.get(topic + _SEPARATOR + group, {})
        return {queue_id: queue_offset for queue_id, queue_offset in queues.items() if queue_offset >= 0}

    def clone(self, source: str, destination: str, topic: str) -> None:
        """Give one group the offsets that another has on a topic; nothing where it has none."""
        for queue_id, queue_offset in self.of(source, topic).items():
            self.commit(destination, topic, queue_id, queue_offset)

    def remove_group(self, group: str) -> None:
        """Forget everything that the group committed."""
        for topic in self.topics_of(group):
            del self._table[topic + _SEPARATOR + group]
            self._is_changed = True

    def topics_of(self, group: str) -> list[str]:
        """The topics on which the group has committed."""
        return [topic for topic, _, owner in map(_split, self._table) if owner == group]

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have committed on the topic."""
        return [owner for name, _, owner in map(_split, self._table) if name == topic]

    def table(self) -> Mapping[str, Mapping[int, int]]:
        """Everything, as GET_ALL_CONSUMER_OFFSET and the file carry it: by `topic@group`, then queue id."""
        return self._table

    def snapshot_writer(self) -> Callable[[], None]:
        """Return a call, for any thread, that writes the table as it is now, where it has changed since the last."""
        if not self._is_changed:
            return _nothing
        table = {key: dict(queues) for key, queues in self._table.items()}
        write = self._file.prepare_write(lambda: {"offsetTable": table})
        self._is_changed = False

        def persist() -> None:
            try:
                write()
            except OSError:
                self._is_changed = True
                raise

        return persist


def _nothing() -> None:
    """There is nothing to be written."""


def _split(key: str) -> tuple[str, str, str]:
    return key.partition(_SEPARATOR)


def parse_consumer_offsets(source: Path | str, document: Any) -> dict[str, dict[int, int]]:
    """The offsets by `topic@group`, as a file or an answer says them; StoreCorrupt names the source of any other."""
    try:
        return {
            key: {int(queue_id): int(queue_offset) for queue_id, queue_offset in queues.items()}
            for key, queues in document["offsetTable"].items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreCorrupt(source, 0, f"no table of consumer offsets ({error!r})") from None
