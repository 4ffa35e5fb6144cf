"""Resend policy: retry times, limits, and the decision about a sent stub. Pure, without I/O.

         add                SEND_OK                     confirmed by every awaited group
    ───────────► NEW ───────────────────────► SENT ─────────────────────────────────────► CONFIRMED
                  │ tried max_sends times       │ lost: sent again, up to max_sends times
                  ▼                             ▼
                MANUAL ◄──────────────────── (check) ──► STUCK   received or waiting, unconfirmed for too long
                                                │
                                                └──────► DEAD    in the group's dead letter queue

MANUAL, STUCK and DEAD raise an alert. A confirmation settles a stub from each of these states. So does VOID, an
operator's command, unless the stub is CONFIRMED: a confirmation wins. An operator reopens a stub by a resend (NEW) or,
if it is DEAD, by a redrive of its dead letter (SENT): its count of sends and all its ages then restart.

A sent stub is lost for a group if the group has no receipt of it, has not returned it to the broker for a retry (as
far as all brokers answer that), and one of these holds:

1. Its position is unknown.
2. The group has committed an offset beyond its position and not beyond the end of the queue.
3. The queue ends before its position: a failover or a lost disk removed it.

Otherwise the message still waits in the queue. It is not sent again, however long the backlog is.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from rucola.errors import ConfigError

LEAST_PURGE_AFTER_MS: Final = 77 * 3_600_000
"""Longer than a broker keeps messages (72 h) and retries them (4 h 46 min)."""


class KeyedResend(Enum):
    """Handling of a lost message with a sharding key, whose later messages may already be consumed."""

    MANUAL = "manual"
    """Leave it to an operator, since a resend breaks the order of the key."""
    SEND = "send"
    """Send it again, out of order."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Times and limits of a relay. ConfigError for an invalid number."""

    batch: int = 1000
    """Maximum number of stubs in one claim."""
    max_sends: int = 16
    """Send attempts before a stub becomes MANUAL."""
    confirm_timeout_ms: int = 60_000
    """Time from a send to its first check; allow for the usual backlog of the groups."""
    retry_ms: int = 1000
    """Wait after the first failed send; doubled after each failure, up to `max_retry_ms`."""
    max_retry_ms: int = 600_000
    max_check_ms: int = 3_600_000
    """Maximum time between two checks of a message that waits in a backlog."""
    jitter: float = 0.2
    """Random fraction added to each wait, so that many stubs do not become due together."""
    stuck_after_ms: int = 6 * 3_600_000
    """Time that a group may take from receipt to confirmation; longer than a broker's retries (4 h 46 min)."""
    overdue_after_ms: int = 24 * 3_600_000
    """Time that a message may wait in its queue before an alert is raised."""
    keyed_resend: KeyedResend = KeyedResend.MANUAL
    lease_ms: int = 30_000
    """Time for which a crashed relay keeps its lanes and claims."""
    poll_ms: int = 2000
    """Poll interval of an idle relay that is not woken."""
    purge_after_ms: int | None = None
    """Age of settled rows that the relay deletes, a thousand of each table a second at most. None: no row."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, (int, float)) and not (0 <= value < 1 if name == "jitter" else value >= 1):
                raise ConfigError(f"{name} is {value}: it must be " + ("0 to 1" if name == "jitter" else "1 or more"))
        if self.purge_after_ms is not None and self.purge_after_ms < LEAST_PURGE_AFTER_MS:
            raise ConfigError(
                f"purge_after_ms is {self.purge_after_ms}: it must be {LEAST_PURGE_AFTER_MS} (77 h) or more, since "
                "brokers keep and retry messages as long as that"
            )
        if not isinstance(self.keyed_resend, KeyedResend):
            raise ConfigError(f"keyed_resend is {self.keyed_resend!r}: it must be a KeyedResend")

    def retry_wait_ms(self, sends: int) -> int:
        """Return the wait after the failure number `sends` of a stub."""
        # By default 1, 2, 4 … 512 s, then 10 minutes each time.
        return self._jittered(min(self.max_retry_ms, self.retry_ms * 2 ** min(sends - 1, 32)))

    def confirm_wait_ms(self, sends: int) -> int:
        """Return the wait for confirmations after a send; it doubles for each send."""
        longest = max(self.max_retry_ms, self.confirm_timeout_ms)
        return self._jittered(min(longest, self.confirm_timeout_ms * 2 ** min(sends - 1, 32)))

    def check_wait_ms(self, sends: int, age_ms: int) -> int:
        """Return half the age, so a message that waits for n hours is checked O(log n) times."""
        return self._jittered(min(self.max_check_ms, max(self.confirm_wait_ms(sends), age_ms // 2)))

    def _jittered(self, wait_ms: int) -> int:
        return int(wait_ms * (1 + self.jitter * random.random()))  # noqa: S311 - spreads load


class Position(NamedTuple):
    topic: str
    broker: str
    queue_id: int
    queue_offset: int


class GroupProgress(NamedTuple):
    """Committed offset of a group in a queue, None before the first commit, and the end offset."""

    committed: int | None
    max_offset: int


class GroupState(NamedTuple):
    """State of one awaited group.

    `received_ms_ago` is None without a receipt, `progress` if the position is unknown or the broker unreachable.
    `is_retried`: the broker has copies that the group returned, even if its database could not store receipts. It and
    the count of dead letters are None if a broker did not answer the search for them.
    """

    received_ms_ago: int | None
    progress: GroupProgress | None
    dead_letters: int | None = 0
    is_retried: bool | None = False


class SentStub(NamedTuple):
    """A sent, unconfirmed stub.

    `age_ms` counts from `add` or the last reopening by an operator, `reopened_ms_ago` (or None). `position` is None if
    the last send's is unknown. `dead_letters` from before a DEAD stub was reopened do not make it DEAD again.
    """

    sends: int
    is_keyed: bool
    age_ms: int
    position: Position | None
    dead_letters: int = 0
    reopened_ms_ago: int | None = None


class Decision(Enum):
    WAIT = "WAIT"
    RESEND = "RESEND"
    STUCK = "STUCK"
    DEAD = "DEAD"
    MANUAL = "MANUAL"


def decide(stub: SentStub, groups: Mapping[str, GroupState], policy: Policy) -> tuple[Decision, str]:
    """Return the decision about a sent stub that awaits `groups`, and its reason."""
    if count_dead_letters(groups) > stub.dead_letters:
        names = ", ".join(group for group, state in groups.items() if state.dead_letters)
        return Decision.DEAD, f"in the dead letter queue of group {names}"
    for group, state in groups.items():
        if state.received_ms_ago is not None and _work_ms(stub, state.received_ms_ago) >= policy.stuck_after_ms:
            return (
                Decision.STUCK,
                f"group {group} received it {_hours(state.received_ms_ago)} ago and has not confirmed",
            )
    # Lost for one group is enough: the resend reaches all groups, and the others drop the duplicate.
    lost = [group for group, state in groups.items() if is_lost(stub.position, state)]
    if not lost and groups:
        if stub.age_ms >= policy.overdue_after_ms:
            return (
                Decision.STUCK,
                f"unconfirmed for {_hours(stub.age_ms)}: groups {', '.join(groups)} do not consume it",
            )
        return Decision.WAIT, "in the queue, or at work"
    why = f"lost for group {', '.join(lost)}" if lost else "the broker did not vouch for it"
    if stub.sends >= policy.max_sends:
        return Decision.MANUAL, f"{why}, sent {stub.sends} times"
    if stub.is_keyed and policy.keyed_resend is KeyedResend.MANUAL:
        return Decision.MANUAL, f"{why}; sending it again would break the order of its key"
    return Decision.RESEND, why


def _work_ms(stub: SentStub, received_ms_ago: int) -> int:
    """Return how long a group has had the message; reopening restarts the time."""
    return received_ms_ago if stub.reopened_ms_ago is None else min(received_ms_ago, stub.reopened_ms_ago)


def is_lost(position: Position | None, state: GroupState) -> bool:
    """Return whether the queue can no longer deliver the message to this group."""
    if state.received_ms_ago is not None or state.is_retried:
        return False
    if state.is_retried is None or state.dead_letters is None:
        return False  # a copy may wait at the broker that did not answer: leave the decision to the next check
    if position is None:
        return True
    if state.progress is None:
        return False  # likewise
    # For example, position 41 and end 50: committed 42 passed it without a receipt, so it is lost; 41 has not reached
    # it; 60 is beyond the end, and so no offset of this queue.
    committed, max_offset = state.progress
    if position.queue_offset >= max_offset:
        return True
    # After a failover or a lost disk, workers may commit offsets of the previous queue. They prove nothing about
    # messages stored since, until a worker corrects them or the queue grows beyond them. Otherwise each check would
    # resend.
    return committed is not None and position.queue_offset < committed <= max_offset


def count_dead_letters(groups: Mapping[str, GroupState]) -> int:
    """Return how many dead letters of these groups are known."""
    return sum(state.dead_letters or 0 for state in groups.values())


def may_be_dead(position: Position | None, state: GroupState) -> bool:
    """Return whether the dead letters of a group count: the message has left its queue, received or not."""
    return state.received_ms_ago is not None or state.is_retried or is_lost(position, state)


def _hours(milliseconds: int) -> str:
    minutes = milliseconds // 60_000
    return f"{minutes // 60} h {minutes % 60} min"
