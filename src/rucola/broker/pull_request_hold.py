"""Held pulls: pull requests that found no message and wait for one (long polling).

Held pulls are kept by queue. When the store dispatches messages to a queue, each pull held there is retried from the
offset that it has reached: a pull that finds something is answered, the others stay. A pull that has waited for as long
as it asked for is retried once more, and answered with whatever that finds, so that the client asks again. Every retry
checks topic, group and permissions again, so that a pull of a topic that was deleted meanwhile is refused. Messages
that the pull's filter rejects do not answer it; they advance the offset from which it is retried, so that no message is
read twice.

Corresponds to `PullRequestHoldService` of Apache RocketMQ 4.9.8. Deliberate difference: a held pull is answered at its
deadline, where Apache checks every five seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rucola.broker.client_registry import ClientChannel


@dataclass(slots=True)
class HeldPull:
    """One pull that waits."""

    channel: ClientChannel
    queue_offset: int
    """Where the next retry begins to read."""
    deadline_ms: int
    """When it is answered at the latest, milliseconds since 1970."""
    retry: Callable[[int, bool], int | None]
    """`retry(queue_offset, is_last)` answers the pull and returns None, or returns the offset to wait at.

    With `is_last` it always answers.
    """


class PullRequestHold:
    """All held pulls of a broker. Belongs to the event loop."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, int], list[HeldPull]] = {}
        """Held pulls by (topic, queue id); a queue without any has no entry."""

    def __len__(self) -> int:
        return sum(map(len, self.held.values()))

    def hold(self, topic: str, queue_id: int, pull: HeldPull) -> None:
        """Keep a pull until messages arrive in its queue or its deadline passes."""
        self.held.setdefault((topic, queue_id), []).append(pull)

    def arrived(self, topic: str, queue_id: int, max_queue_offset: int) -> None:
        """Retry the pulls held for a queue whose end is `max_queue_offset` now."""
        # The entry is removed during the retries: a retry may hold or dispatch, and must not see it half processed.
        pulls = self.held.pop((topic, queue_id), None)
        if pulls is None:
            return
        waiting = []
        for pull in pulls:
            if not pull.channel.is_open:
                continue
            # A pull beyond the new end has nothing to read yet.
            if pull.queue_offset < max_queue_offset:
                queue_offset = pull.retry(pull.queue_offset, False)
                if queue_offset is None:
                    continue
                pull.queue_offset = queue_offset
            waiting.append(pull)
        if waiting:
            self.held.setdefault((topic, queue_id), []).extend(waiting)

    def expire(self, now_ms: int) -> None:
        """Answer the pulls whose deadline has passed, and drop those whose connection is closed."""
        self._answer(lambda pull: now_ms >= pull.deadline_ms)

    def release_all(self) -> None:
        """Answer every pull now, since the broker stops."""
        self._answer(lambda pull: True)

    def _answer(self, is_due: Callable[[HeldPull], bool]) -> None:
        for queue, pulls in list(self.held.items()):
            waiting = []
            for pull in pulls:
                if not pull.channel.is_open:
                    continue
                if is_due(pull):
                    queue_offset = pull.retry(pull.queue_offset, True)
                    assert queue_offset is None, "the last retry must answer"
                else:
                    waiting.append(pull)
            if waiting:
                self.held[queue] = waiting
            else:
                del self.held[queue]
