"""A store against a dict: whatever is done to it, in whatever order, it answers as the dict does."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rucola.message import MessageInner
from rucola.message.record import decode
from rucola.store import commit_log
from rucola.store.config import GetMessageStatus, PutMessageStatus
from rucola.store.message_store import MessageStore
from rucola.store.retention import DiskUsage
from rucola.store.tools.check import check
from simulation.disk import without_waiting
from support.stores import all_messages, batch, config, crashed_copy, inner

pytestmark = pytest.mark.slow

Name = tuple[str, int]

names = st.tuples(st.sampled_from(["A", "Topic"]), st.integers(0, 1))
bodies = st.sampled_from([0, 1, 50, 700, 2500])
keys = st.sampled_from([None, "k", "k other", "Aa", "BB"])


Sent = tuple[int, bytes]
"""A message that was put: its physical offset, and its body."""

NOON = 12


class StoreMachine(RuleBasedStateMachine):
    """Files hold a few records, ten units and 39 entries, so that every kind of file rolls."""

    @initialize(write_from=st.sampled_from([0, 300, 4096]))
    def make(self, write_from: int) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(commit_log, "_WRITE_FROM", write_from)
        self.root = Path(tempfile.mkdtemp(prefix="store-model-"))
        self.lives = 0
        self.now_ms = 1_000_000
        self.number = 0
        self.begin = 0
        self.queues: dict[Name, list[Sent]] = {}
        self.keyed: dict[tuple[str, str], list[Sent]] = {}
        self.open("0")

    def open(self, name: str) -> None:
        self.store = MessageStore(config(self.root / name))
        self.store.open(self.now_ms)

    def message(self, name: Name, size: int, key: str | None) -> MessageInner:
        self.number += 1
        return inner(*name, b"%06d" % self.number + bytes(size), keys=key, unique_key=f"U{self.number}")

    def note(self, message: MessageInner, physical_offset: int) -> None:
        sent = physical_offset, bytes(message.body)
        self.queues.setdefault((message.topic, message.queue_id), []).append(sent)
        for key in (message.unique_key, *(message.keys or "").split()):
            self.keyed.setdefault((message.topic, str(key)), []).append(sent)

    def there(self, sent: list[Sent]) -> list[bytes]:
        """What is left of them: whose file of the log has not gone."""
        return [body for physical_offset, body in sent if physical_offset >= self.begin]

    def ends(self, name: Name) -> tuple[int, int]:
        """The offsets at which a queue begins and ends."""
        sent = self.queues.get(name, [])
        return len(sent) - len(self.there(sent)), len(sent)

    @rule(name=names, size=bodies, key=keys, later=st.sampled_from([0, 10, 5000]))
    def put(self, name: Name, size: int, key: str | None, later: int) -> None:
        self.now_ms += later
        message = self.message(name, size, key)
        result = self.store.put(message, self.now_ms)
        assert result.status is PutMessageStatus.PUT_OK
        assert result.queue_offset == len(self.queues.get(name, []))
        self.note(message, result.physical_offset)

    @rule(name=names, count=st.integers(2, 12), key=keys)
    def put_batch(self, name: Name, count: int, key: str | None) -> None:
        messages = [self.message(name, 20, key) for _ in range(count)]
        result = self.store.put_batch(batch(*messages), self.now_ms)
        assert result.status is PutMessageStatus.PUT_OK
        first = len(self.queues.get(name, []))
        assert result.queue_offsets == list(range(first, first + count))
        for message, physical_offset in zip(messages, result.physical_offsets, strict=True):
            self.note(message, physical_offset)

    @rule(name=names)
    def put_too_much(self, name: Name) -> None:
        assert self.store.put(self.message(name, 5000, None), self.now_ms).status is PutMessageStatus.MESSAGE_ILLEGAL

    @rule(name=names, begin=st.integers(-1, 60), count=st.integers(1, 40))
    def get(self, name: Name, begin: int, count: int) -> None:
        low, high = self.ends(name)
        page = self.store.get(*name, begin, count)
        found = [decode(record).body for record in page.records]
        assert (page.status is GetMessageStatus.FOUND) == (low <= begin < high)
        if found:
            assert found == [body for _, body in self.queues[name][begin : begin + len(found)]]
            assert page.next_begin_offset == begin + len(found)

    @rule(topic=st.sampled_from(["A", "Topic"]), key=st.sampled_from(["k", "other", "Aa", "BB", "none"]))
    def query(self, topic: str, key: str) -> None:
        found = [decode(record) for record in self.store.query(topic, key, 64).records]
        exact = [message.body for message in found if key in (message.keys or "").split()]
        sent = self.there(self.keyed.get((topic, key), []))
        if len(found) < 64:  # `Aa` and `BB` have one hash, so that a full answer may hold less of each
            assert exact == sent
        assert exact == sent[len(sent) - len(exact) :]

    @rule()
    def reput(self) -> None:
        self.store.reput()

    @rule()
    def flush(self) -> None:
        self.store.flush()
        assert self.store.flushed_physical_offset == self.store.max_physical_offset

    @rule()
    def checkpoint(self) -> None:
        self.store.checkpoint()

    @rule(name=names)
    def roll(self, name: Name) -> None:
        """Messages up to the next file of the log; the last of them lies behind a blank, in the new one."""
        size = self.store.config.mapped_file_size_commit_log
        file = self.store.max_physical_offset // size
        while self.store.max_physical_offset // size == file:
            self.put(name, 1500, None, 0)
        assert self.queues[name][-1][0] == (file + 1) * size

    @rule(count=st.integers(1, 3), is_deleted=st.booleans())
    def clean(self, count: int, is_deleted: bool) -> None:
        """The disk is so full that the oldest files go, as many as that, but not the one that is written."""
        size = self.store.config.mapped_file_size_commit_log
        self.store.begin_retention_round(self.now_ms, NOON, [DiskUsage(self.root, 86, 100)])
        for _ in range(count):
            before = self.store.min_physical_offset
            if self.store.expire(self.now_ms) and is_deleted:
                self.store.delete_expired()
            assert self.store.min_physical_offset in (before, before + size)
        self.begin = self.store.min_physical_offset
        assert self.begin <= self.store.max_physical_offset

    @rule()
    def stop_and_start(self) -> None:
        self.store.close()
        assert check(self.store.config.store_path_root_dir) == []
        self.open(str(self.lives))

    @rule()
    def die_and_start(self) -> None:
        """The files as the kernel has them, in another directory; the process itself cannot be left here."""
        self.lives += 1
        after = crashed_copy(self.store, self.root / str(self.lives))
        self.store.close()
        shutil.rmtree(self.store.config.store_path_root_dir)
        self.store = after
        self.store.open(self.now_ms)
        assert self.store.min_physical_offset <= self.begin  # files that had expired, but were not deleted, are back
        self.begin = self.store.min_physical_offset

    @invariant()
    def ends_are_right(self) -> None:
        assert self.store.min_physical_offset == self.begin
        for name in self.queues:
            assert (self.store.min_offset(*name), self.store.max_offset(*name)) == self.ends(name)

    def teardown(self) -> None:
        for name, sent in self.queues.items():
            begin, _ = self.ends(name)
            assert [message.body for message in all_messages(self.store, *name, begin)] == self.there(sent)
        self.store.close()
        assert check(self.store.config.store_path_root_dir) == []
        shutil.rmtree(self.root)
        self.patch.undo()


def test_store_answers_as_a_dict_would(monkeypatch: pytest.MonkeyPatch) -> None:
    without_waiting(monkeypatch)
    StoreMachine.TestCase.settings = settings(
        max_examples=50, stateful_step_count=60, suppress_health_check=list(HealthCheck)
    )
    StoreMachine.TestCase("runTest").runTest()
