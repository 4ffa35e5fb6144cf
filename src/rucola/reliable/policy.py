"""Policy: how often and when a stub is sent again, and what a check of a sent stub decides. Pure, without I/O.

         add                SEND_OK                     confirmed by every awaited group
    ───────────► NEW ───────────────────────► SENT ─────────────────────────────────────► CONFIRMED
                  │ tried max_sends times       │ lost: sent again, up to max_sends times
                  ▼                             ▼
                MANUAL ◄──────────────────── (check) ──► STUCK   received or waiting, unconfirmed for too long
                                                │
                                                └──────► DEAD    in the group's dead letter queue

MANUAL, STUCK and DEAD raise an alert. A confirmation settles a stub from each of them; so does VOID, an operator's
command, unless the stub is CONFIRMED: confirmed wins.

A sent stub is lost for a group if the group has no receipt of it, and either nothing is known of its position, or the
group has committed an offset behind it, or the queue now ends before it (a failover or a lost disk took it). Otherwise
it still waits in the queue, however long the backlog is, and is not sent again.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

import msgspec

from rucola.errors import ConfigError


class KeyedResend(Enum):
    """What happens to a lost message with a sharding key: messages behind it may have been consumed."""

    MANUAL = "manual"
    """An operator decides: sending it again breaks the order of its key."""
    SEND = "send"
    """It is sent again, out of order."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Times and limits of a relay. ConfigError for a number that makes no sense."""

    batch: int = 1000
    """The most stubs that are claimed at a time."""
    max_sends: int = 16
    confirm_timeout_ms: int = 60_000
    """How long after a send the first check is made; include the backlog that is normal."""
    retry_ms: int = 1000
    """The wait after the first failed send; doubled each time, up to `max_retry_ms`."""
    max_retry_ms: int = 600_000
    max_check_ms: int = 3_600_000
    """The longest wait between two checks of a message that waits in a backlog."""
    jitter: float = 0.2
    """The part of a wait that is random, so that many stubs do not come due together."""
    stuck_after_ms: int = 6 * 3_600_000
    """How long a group may take from receipt to confirmation: more than all retries of a broker, 4 h 46 min."""
    overdue_after_ms: int = 24 * 3_600_000
    """How long a message may wait in its queue until a person is told."""
    keyed_resend: KeyedResend = KeyedResend.MANUAL
    lease_ms: int = 30_000
    """How long a relay that stops without a word keeps its lanes and claims."""
    poll_ms: int = 2000
    """How often an idle relay looks, unless it is woken."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, (int, float)) and not (0 <= value < 1 if name == "jitter" else value >= 1):
                raise ConfigError(f"{name} is {value}: it must be " + ("0 to 1" if name == "jitter" else "1 or more"))
        if not isinstance(self.keyed_resend, KeyedResend):
            raise ConfigError(f"keyed_resend is {self.keyed_resend!r}: it must be a KeyedResend")

    def retry_wait_ms(self, sends: int) -> int:
        """How long to wait after a failure, when a stub was sent so many times."""
        return self._jittered(min(self.max_retry_ms, self.retry_ms * 2 ** min(sends - 1, 32)))

    def confirm_wait_ms(self, sends: int, delay_ms: int = 0) -> int:
        """How long to wait for confirmations after a send: doubled each time, behind the message's own delay."""
        longest = max(self.max_retry_ms, self.confirm_timeout_ms)
        return delay_ms + self._jittered(min(longest, self.confirm_timeout_ms * 2 ** min(sends - 1, 32)))

    def check_wait_ms(self, sends: int, age_ms: int) -> int:
        """How long until a message that is not lost is checked again: half its age, so a long backlog costs little."""
        return self._jittered(min(self.max_check_ms, max(self.confirm_wait_ms(sends), age_ms // 2)))

    def _jittered(self, wait_ms: int) -> int:
        return int(wait_ms * (1 + self.jitter * random.random()))


class Position(NamedTuple):
    """Where a message was stored."""

    topic: str
    broker: str
    queue_id: int
    queue_offset: int


class GroupProgress(NamedTuple):
    """How far a group is in a queue: its committed offset, None before the first; and the queue's end."""

    committed: int | None
    max_offset: int


class GroupState(NamedTuple):
    """What is known of one awaited group.

    `received_ms_ago` is None without a receipt; `progress` None if the position or the broker's answer is missing;
    `dead_letters` counts the message in the group's dead letter queue.
    """

    received_ms_ago: int | None
    progress: GroupProgress | None
    dead_letters: int = 0


class SentStub(NamedTuple):
    """A sent, unconfirmed stub.

    `position` is None if the last send's position says nothing of the message's queue. `dead_letters` are those of an
    earlier life of the stub: it was DEAD, and an operator had it sent again.
    """

    sends: int
    is_keyed: bool
    age_ms: int
    position: Position | None
    dead_letters: int = 0


class Decision(Enum):
    """What a check of a sent stub decides."""

    WAIT = "WAIT"
    RESEND = "RESEND"
    STUCK = "STUCK"
    DEAD = "DEAD"
    MANUAL = "MANUAL"


def decide(stub: SentStub, groups: Mapping[str, GroupState], policy: Policy) -> tuple[Decision, str]:
    """Decide what becomes of a sent stub, and say why. `groups` are those that it awaits."""
    if sum(state.dead_letters for state in groups.values()) > stub.dead_letters:
        names = ", ".join(group for group, state in groups.items() if state.dead_letters)
        return Decision.DEAD, f"in the dead letter queue of group {names}"
    for group, state in groups.items():
        if state.received_ms_ago is not None and state.received_ms_ago >= policy.stuck_after_ms:
            return (
                Decision.STUCK,
                f"group {group} received it {_hours(state.received_ms_ago)} ago and has not confirmed",
            )
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


def is_lost(position: Position | None, state: GroupState) -> bool:
    """Whether nothing will deliver the message to this group any more."""
    if state.received_ms_ago is not None:
        return False
    if position is None:
        return True
    if state.progress is None:
        return False  # the broker gave no answer: the next check will tell
    committed, max_offset = state.progress
    return position.queue_offset >= max_offset or (committed is not None and position.queue_offset < committed)


def _hours(milliseconds: int) -> str:
    minutes = milliseconds // 60_000
    return f"{minutes // 60} h {minutes % 60} min"
