"""PullRequestHold: pulls that found nothing and wait for a message.

A held pull is kept by its queue. When the store dispatches messages to that queue, the pulls on it are tried again
from the offset they have reached: those that find something are answered, the others keep waiting. A pull that waits
longer than it asked for is answered with what there is, which tells the client to ask again. Every try checks topic,
group and permissions again, so that a pull on a topic that was deleted meanwhile is refused. Messages that the pull's
filter refuses do not wake it, but move the offset from which it is tried, so that none is looked at twice.

Answers to `PullRequestHoldService` of Apache RocketMQ 4.9.8. Deliberate difference: a held pull is answered the
moment its time is up, where Apache looks every five seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rucola.protocol.command import RemotingCommand
from rucola.remoting.connection import Connection


@dataclass(slots=True)
class HeldPull:
    """One pull that waits. `try_again(queue_offset, is_last)` answers it, or gives the offset to wait from."""

    connection: Connection
    queue_offset: int
    deadline_ms: int
    try_again: Callable[[int, bool], RemotingCommand | bytes | int]


class PullRequestHold:
    """All pulls that wait, by topic and queue id."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, int], list[HeldPull]] = {}
        """Who waits, by (topic, queue id); empty where nobody does."""

    def __len__(self) -> int:
        return sum(map(len, self.held.values()))

    def hold(self, topic: str, queue_id: int, pull: HeldPull) -> None:
        self.held.setdefault((topic, queue_id), []).append(pull)

    def arrived(self, topic: str, queue_id: int, max_queue_offset: int) -> None:
        """Messages were dispatched to a queue; `max_queue_offset` is behind the last."""
        pulls = self.held.pop((topic, queue_id), None)
        if pulls is None:
            return
        waiting = []
        for pull in pulls:
            if not pull.connection.is_open:
                continue
            if pull.queue_offset < max_queue_offset:
                outcome = pull.try_again(pull.queue_offset, False)
                if not isinstance(outcome, int):
                    pull.connection.send(outcome)
                    continue
                pull.queue_offset = outcome
            waiting.append(pull)
        if waiting:
            self.held.setdefault((topic, queue_id), []).extend(waiting)

    def expire(self, now_ms: int) -> None:
        """Answer the pulls whose time is up, and forget those whose connection is gone."""
        self._release(lambda pull: now_ms >= pull.deadline_ms)

    def release_all(self) -> None:
        """Answer every pull now: the broker stops."""
        self._release(lambda pull: True)

    def _release(self, is_due: Callable[[HeldPull], bool]) -> None:
        for queue, pulls in list(self.held.items()):
            waiting = []
            for pull in pulls:
                if not pull.connection.is_open:
                    continue
                if is_due(pull):
                    outcome = pull.try_again(pull.queue_offset, True)
                    assert not isinstance(outcome, int), "the last try must answer"
                    pull.connection.send(outcome)
                else:
                    waiting.append(pull)
            if waiting:
                self.held[queue] = waiting
            else:
                del self.held[queue]
