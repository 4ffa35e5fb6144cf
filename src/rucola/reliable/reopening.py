"""Reopening of DEAD stubs while their dead letters are re-driven.

    async for result in admin.dead_letters.redrive("billing", after=reopening(database, tables, "billing")):
        ...

The copy is sent first, then the stub is set from DEAD to SENT: if interrupted in between, the copy's consumption
confirms the stub, and the next run finds the copy and reopens the stub. In the other order, the relay would wait for a
copy that was never sent.
"""

from __future__ import annotations

from rucola.admin.redrive import AfterRedrive, RedriveResult
from rucola.message.topics import retry_topic
from rucola.reliable import operations
from rucola.reliable.database import Database
from rucola.reliable.policy import Policy, Position
from rucola.reliable.schema import Tables


def reopening(database: Database, tables: Tables, group: str) -> AfterRedrive:
    """Return a callback for `redrive` that reopens the group's stubs; they are due as after a first send."""
    policy = Policy()

    async def reopen(result: RedriveResult) -> bool:
        return await database.run(
            operations.reopen, tables, result.message.msg_id, group, _position(result, group), policy.confirm_wait_ms(1)
        )

    return reopen


def _position(result: RedriveResult, group: str) -> Position | None:
    """Return the position of a copy that every group receives: None if unknown or in a retry topic."""
    if result.sent is None or result.topic == retry_topic(group):
        return None
    return Position(result.topic, result.sent.queue.broker_name, result.sent.queue.queue_id, result.sent.queue_offset)
