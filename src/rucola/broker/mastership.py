"""Mastership: the epoch in which a broker is master, and whether it may still write.

Each mastership has an epoch, greater than all before it (`rucola.store.epoch_file`), which is on disk before the first
message of that mastership is stored. A master that learns of a newer one is fenced at once: it refuses messages and
serves reads, until it is started again, as slave or as master of a newer epoch. It may learn of the newer one

- at its start, when it claims its epoch with the name servers,
- from the response to a registration, every registerNameServerPeriod,
- from a slave that has followed the newer master.

No counterpart in Apache RocketMQ 4.9.8, where two masters of one name both accept messages.
"""

from __future__ import annotations

import logging

from rucola.broker.role import LogPosition
from rucola.store.epoch_file import EpochFile
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)


class Mastership:
    """The mastership of one open store, by election or by an operator. Belongs to the event loop."""

    def __init__(self, store: MessageStore, epochs: EpochFile, *, is_elected: bool = False) -> None:
        self._store = store
        self._is_elected = is_elected
        self.epochs = epochs
        self.epoch = 0
        """0 on a slave, and before `begin`."""
        self.fenced_by = 0
        """The epoch of the newer master, or 0."""

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.epochs.last.number, self._store.max_physical_offset)

    @property
    def flushed_position(self) -> LogPosition:
        """The end of the log on disk."""
        return LogPosition(self.epochs.last.number, self._store.flushed_physical_offset)

    @property
    def is_valid(self) -> bool:
        """Whether this broker is master, as far as it can see."""
        return self.epoch > 0 and not self.fenced_by

    def begin(self, epoch: int) -> None:
        """Begin an epoch at the end of the log; on disk on return. Raises OSError, or ValueError if it is not new."""
        self.epochs.begin_epoch(epoch, self._store.max_physical_offset)
        self.epoch = epoch
        logger.info("master in epoch %d, from physical offset %d on", epoch, self._store.max_physical_offset)

    def pause(self, reason: str) -> None:
        """Refuse messages until `resume`, while the mastership is handed over."""
        self._store.write_state.set_fenced(reason)

    def resume(self) -> None:
        """End a pause, unless this master has been fenced."""
        if not self.fenced_by:
            self._store.write_state.set_fenced(None)

    def fence(self, epoch: int, what: str) -> None:
        """Refuse messages from now on, since `what`, the master of a newer epoch, exists."""
        if self.fenced_by >= epoch:
            return
        self.fenced_by = epoch
        own = self.epoch or self.epochs.last.number
        before = f"was master in epoch {own}" if own else "was never master"
        advice = (
            "It follows that master as soon as etcd answers"
            if self._is_elected
            else "Start it with brokerRole=SLAVE and a brokerId above 0 to follow that master. If that one will not "
            "come back, `rucola admin promote` makes this one master"
        )
        reason = (
            f"this broker {before}, and {what} is master in epoch {epoch}: it accepts no messages, and serves reads. "
            f"{advice}"
        )
        logger.error("fenced: %s", reason)
        self._store.write_state.set_fenced(reason)
