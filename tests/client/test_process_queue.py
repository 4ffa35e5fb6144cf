"""Progress on one queue: what may be committed, and when pulling must wait."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rucola.client.consumer.process_queue import ProcessQueue, PullLimits, ReadAhead
from rucola.message import MessageExt, MessageInner
from rucola.message.record import decode, encode
from support.examples import examples

HOST = bytes([127, 0, 0, 1, 0, 0, 0, 1])
LIMITS = PullLimits(span=2000)
STORED = decode(encode(MessageInner("T", 0, b"body", b"", 0, 0, 0, HOST), 0, 0, 0, HOST))


def message(queue_offset: int, size: int = 4) -> MessageExt:
    return replace(STORED, queue_offset=queue_offset, body=bytes(size))


class Progress(RuleBasedStateMachine):
    """Pulls and acknowledgements in any order, beside the plainest model: a set of offsets that are not done."""

    def __init__(self) -> None:
        super().__init__()
        self.read_ahead = ReadAhead()
        self.progress = ProcessQueue(10, LIMITS, self.read_ahead)
        self.held: dict[int, int] = {}
        self.committed = 10

    @rule(gaps=st.lists(st.integers(1, 5), max_size=8), beyond=st.integers(0, 5), size=st.integers(1, 100))
    def pull(self, gaps: list[int], beyond: int, size: int) -> None:
        """Messages with holes between them, as filtered topics have; the next offset may lie beyond the last."""
        offset = self.progress.next_offset - 1
        offsets = [offset := offset + gap for gap in gaps]
        new = self.progress.put([message(offset, size) for offset in offsets], offset + 1 + beyond)
        assert [m.queue_offset for m in new] == offsets
        assert self.progress.next_offset == offset + 1 + beyond
        self.held |= dict.fromkeys(offsets, size)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.held)))
        assert self.progress.complete(message(offset))
        del self.held[offset]
        assert not self.progress.complete(message(offset))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def pull_again(self, data: st.DataObject) -> None:
        """What has been here is not taken in a second time."""
        offset = data.draw(st.sampled_from(sorted(self.held)))
        assert self.progress.put([message(offset)], offset + 1) == []

    @invariant()
    def committed_is_the_smallest_not_done(self) -> None:
        assert self.progress.commit_offset == min(self.held, default=self.progress.next_offset)

    @invariant()
    def committed_never_falls(self) -> None:
        assert self.progress.commit_offset >= self.committed
        self.committed = self.progress.commit_offset

    @invariant()
    def counts_and_sizes_are_those_held(self) -> None:
        assert len(self.progress) == len(self.held)
        assert self.progress.size == self.read_ahead.size == sum(self.held.values())


TestProgress = Progress.TestCase
TestProgress.settings = settings(max_examples=examples(40), stateful_step_count=30)
