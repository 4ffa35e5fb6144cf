"""The log of POP: after any crash the states are those of the records that are whole, and written ones are."""

from __future__ import annotations

import errno
import resource
import signal
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rucola.broker.delivery.pop_log import PopLog, PopQueue
from rucola.broker.delivery.pop_state import Candidate, Dead, PopRecord, PopState, Reset
from rucola.errors import StoreCorrupt

QUEUES = [PopQueue("T", "G", 0), PopQueue("%RETRY%G", "G", 1), PopQueue("T", "Gruppe ä", 0)]

Step = tuple[str, int, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(["receive", "again", "ack", "change", "move", "reset", "snapshot", "write"]),
        st.integers(0, 2),
        st.integers(0, 3),
    ),
    max_size=25,
)


class Broker:
    """States with their log, and what must be there after a crash."""

    def __init__(self, path: Path) -> None:
        self.log = PopLog(path)
        self.states: dict[PopQueue, PopState] = {}
        self.history = [self.copy()]
        """After each record since the last write."""

    def copy(self) -> dict[PopQueue, PopState]:
        copies = {}
        for queue, state in self.states.items():
            copies[queue] = PopState(queue.queue_id)
            copies[queue].apply(state.snapshot())
        return copies

    def do(self, now_ms: int, step: Step) -> None:
        name, number, count = step
        if name == "write":
            self.log.write()
            self.history = [self.copy()]
            return
        if name == "snapshot":
            self.log.snapshot(self.states)
            return
        queue = QUEUES[number]
        state = self.states.get(queue) or PopState(queue.queue_id)
        record = self.decide(state, now_ms, name, count)
        if record is not None:
            self.states[queue] = state
            state.apply(record)
            self.log.append(queue, record)
            self.history.append(self.copy())

    @staticmethod
    def decide(state: PopState, now_ms: int, name: str, count: int) -> PopRecord | None:
        handles = [state.handle(offset) for offset, each in state.outstanding.items() if each.attempt][:count]
        if name in ("receive", "again"):
            new = [Candidate(state.next_offset + i, [None, "ä"][i % 2]) for i in range(count)]
            return state.receive(now_ms, 3, count + 1, new, attempt_id="x" if name == "again" else None)
        if name == "ack":
            return state.ack(handles)
        if name == "change":
            return state.change(handles[0], now_ms, count) if handles else None
        return Dead(tuple(state.visible_again(now_ms))) if name == "move" else Reset(count)


@settings(deadline=None, max_examples=80)
@given(steps=steps, data=st.data())
def test_a_crash_loses_at_most_what_was_not_written(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("pop") / "config" / "popLog"
    broker = Broker(path)
    for now_ms, step in enumerate(steps):
        broker.do(now_ms, step)
    written = path.stat().st_size if path.exists() else 0
    # The kernel wrote a part of the next write, then the power failed.
    names = [name for name, _, _ in steps if name in ("snapshot", "write")]
    broker.log.write()
    if names[-1:] != ["snapshot"] and path.exists():
        content = path.read_bytes()
        cut = data.draw(st.integers(written, len(content)), label="cut")
        path.write_bytes(content[:cut] + data.draw(st.sampled_from([b"", bytes(20)]), label="tail"))
    after = Broker(path)
    after.states = after.log.load()
    assert after.states in broker.history
    # It goes on, and the next start finds what it wrote.
    after.do(1000, ("receive", 0, 3))
    after.log.write()
    again = PopLog(path)
    assert again.load() == after.states
    assert again.size == path.stat().st_size


def limited(size: int, call: Callable[[], Any]) -> None:
    """Call with a limit of the size of files, as a full disk sets one."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        call()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("first", ["write", "snapshot"])
def test_what_a_full_disk_refused_is_written_later(tmp_path: Path, first: str) -> None:
    broker = Broker(tmp_path / "popLog")
    for step in [("receive", 0, 3), ("write", 0, 0), ("ack", 0, 1), (first, 0, 0), ("receive", 1, 3)]:
        broker.do(0, step)
    size = broker.log.path.stat().st_size
    with pytest.raises(OSError, check=lambda error: error.errno == errno.EFBIG):
        limited(size + 10 if first == "write" else 10, broker.log.write)
    assert PopLog(broker.log.path).load() == broker.history[0]
    broker.do(9, ("receive", 0, 2))
    broker.log.write()
    assert PopLog(broker.log.path).load() == broker.states


def test_a_snapshot_makes_the_file_small(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "popLog")
    for now_ms in range(100):
        broker.do(now_ms, ("receive", 0, 3))
        broker.do(now_ms, ("ack", 0, 3))
    broker.log.write()
    before = broker.log.path.stat().st_size
    broker.log.snapshot(broker.states)
    broker.log.write()
    assert broker.log.path.stat().st_size < before / 10
    assert PopLog(broker.log.path).load() == broker.states


@pytest.mark.parametrize("payload", [b"[]", b'["Ack","T","G",0,[5]]', b'["Other","T","G",0]', b"{"])
def test_a_whole_record_that_does_not_fit_is_refused(tmp_path: Path, payload: bytes) -> None:
    path = tmp_path / "popLog"
    path.write_bytes(struct.pack(">II", len(payload), zlib.crc32(payload)) + payload)
    with pytest.raises(StoreCorrupt):
        PopLog(path).load()
