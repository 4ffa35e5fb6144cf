"""Pending dispatch requests, of messages that were put and have no ConsumeQueue units yet.

If a dispatch gets no descriptor or no disk space, its batch is kept, and the store is STALLED: it refuses puts, so that
the requests stay bounded, and reads find earlier messages. Every later call writes the rest of that batch first; when
one succeeds, the store accepts puts again. Any other error makes the store FAILED.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rucola.store.consume_queue import ConsumeQueue
from rucola.store.dispatch import ArrivalListener, CommitLogDispatcher
from rucola.store.dispatch_request import DispatchRequest
from rucola.store.flusher import Flusher
from rucola.store.write_state import WriteState
from rucola.system_calls import EXHAUSTED

log = logging.getLogger(__name__)

DISPATCHED_PART: Final = 4
"""A bounded dispatch takes at least this part of the pending requests, so that they cannot pile up."""


class PendingRequests:
    """The pending requests of one open store. Belongs to its owner thread."""

    def __init__(
        self,
        requests: list[DispatchRequest],
        dispatcher: CommitLogDispatcher,
        flusher: Flusher,
        write_state: WriteState,
        on_arrival: ArrivalListener | None,
        fail: Callable[[str], None],
        root: Path,
    ) -> None:
        self._requests = requests
        """In the order of the log. The store appends to this list; it stays the same object."""
        self._interrupted: list[DispatchRequest] = []
        self._dispatcher = dispatcher
        self._flusher = flusher
        self._write_state = write_state
        self._on_arrival = on_arrival
        self._fail = fail
        self._root = root
        self._is_dispatching = False
        self.stall: str | None = None
        """Why the last dispatch got no descriptor or no disk space; None if it succeeded."""

    def __bool__(self) -> bool:
        return bool(self._requests or self._interrupted)

    def dispatch(self, max_count: int | None = None, max_new_queues: int | None = None) -> int:
        """Dispatch the oldest requests and return their number; see `MessageStore.reput`."""
        # `on_arrival` may read, and a read dispatches: the batch that is being dispatched comes first.
        if self._is_dispatching:
            return 0
        batch, requests = self._interrupted, self._requests
        if not batch:
            # Of 500 pending requests 256 at a time, of 4,000 a quarter, which is 1,000.
            end = len(requests) if max_count is None else max(max_count, len(requests) // DISPATCHED_PART)
            if max_new_queues is not None:
                end = self._dispatcher.queues.count_within_new_queues(requests[:end], max_new_queues)
            batch = requests[:end]
            del requests[:end]
        if not batch:
            return 0
        touched: set[ConsumeQueue] = set()
        self._is_dispatching = True
        try:
            self._dispatcher.dispatch(batch, touched, self._on_arrival)
        except OSError as error:
            self._flusher.mark_dirty(touched, None)
            self._interrupt(batch, error)
            return 0
        finally:
            self._is_dispatching = False
        self._flusher.mark_dirty(touched, batch[-1].store_timestamp)
        if self._interrupted:
            self._interrupted, self.stall = [], None
            log.warning("%s takes messages again", self._root)
            self._write_state.set_stalled(None)
        return len(batch)

    def _interrupt(self, batch: list[DispatchRequest], error: OSError) -> None:
        """Keep an undispatched batch, or raise the error unless it is temporary."""
        if error.errno not in EXHAUSTED:
            # The log has these messages; the recovery of the next opening dispatches them.
            self._requests.clear()
            self._interrupted, self.stall = [], None
            self._fail(f"dispatch failed: {error}")
            raise error
        if not self._interrupted:
            log.error("%s takes no messages until those that it has can be dispatched: %s", self._root, error)
        self._interrupted = batch
        self.stall = f"the messages that the store has cannot be dispatched yet: {error}"
        self._write_state.set_stalled(self.stall)
