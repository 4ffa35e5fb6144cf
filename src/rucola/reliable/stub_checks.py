"""Checks of sent stubs: outcomes from their groups' state at brokers and in the database."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ARRAY, Connection, Row, Select, cast, func, select, true

from rucola.admin import AdminClient
from rucola.client import ClientInstance, MessageQueue, PullConsumer
from rucola.errors import MQError, TopicNotFound
from rucola.message import MessageExt, properties
from rucola.message.topics import SCHEDULE_TOPIC, dlq_topic, retry_topic
from rucola.outages import Outages
from rucola.reliable.outbox import awaited
from rucola.reliable.policy import (
    Decision,
    GroupProgress,
    GroupState,
    Policy,
    Position,
    SentStub,
    count_dead_letters,
    decide,
    is_lost,
    may_be_dead,
)
from rucola.reliable.schema import SENT, Tables, now_ms
from rucola.reliable.stub_claims import Outcome

logger = logging.getLogger(__name__)

CONCURRENCY = 16


class Checker:
    """Checker of sent stubs; queries offsets once per round for each queue and group."""

    def __init__(self, instance: ClientInstance, admin: AdminClient, policy: Policy, of_tenant: str = "") -> None:
        self._instance = instance
        self._admin = admin
        self._outages = Outages(logger, level=logging.INFO)
        self._policy = policy
        self._of_tenant = of_tenant
        self._consumers: dict[str, PullConsumer] = {}

    async def check(
        self, rows: Sequence[Row[Any]], receipts: dict[tuple[str, str], int]
    ) -> tuple[list[int], list[Outcome]]:
        """Return the `seq` to send again, and other outcomes. `receipts`: age in ms by (message id, group)."""
        progress: dict[tuple[str, str, str, int], asyncio.Task[GroupProgress | None]] = {}
        in_parallel = asyncio.Semaphore(CONCURRENCY)
        # Messages by the reason of their resend, which is logged once for all of them.
        reasons: dict[str, list[str]] = {}

        async def state_of(row: Row[Any], group: str, position: Position | None) -> GroupState:
            state = GroupState(receipts.get((row.message_id, group)), None)
            if position is not None:
                key = (group, *position[:3])
                if key not in progress:
                    progress[key] = asyncio.ensure_future(self._progress(group, position))
                state = state._replace(progress=await progress[key])
            if is_lost(position, state):
                state = state._replace(is_retried=await self._is_retried(group, row.message_id))
            if may_be_dead(position, state):
                state = state._replace(dead_letters=await self._dead_letters(group, row.message_id))
            return state

        async def check_one(row: Row[Any]) -> Outcome | int:
            async with in_parallel:
                stub = sent_stub_of(row)
                groups = {group: await state_of(row, group, stub.position) for group in awaited(row.awaiting)}
            decision, why = decide(stub, groups, self._policy)
            match decision:
                case Decision.RESEND:
                    reasons.setdefault(f"topic {row.topic}{self._of_tenant}: {why}", []).append(row.message_id)
                    return int(row.seq)
                case Decision.WAIT:
                    return Outcome(row.seq, SENT, SENT, wait_ms=self._policy.check_wait_ms(row.sends, row.age_ms))
                case _:
                    letters = count_dead_letters(groups) or None
                    # Due at once, so that the next round raises the alert.
                    return Outcome(row.seq, SENT, decision.value, wait_ms=0, error=why, dead_letters=letters)

        results = await asyncio.gather(*map(check_one, rows))
        for reason, message_ids in reasons.items():  # one line for all that a broker has lost, not one for each
            logger.warning("resending %d messages of %s; one of them is %s", len(message_ids), reason, message_ids[0])
        return (
            [result for result in results if isinstance(result, int)],
            [result for result in results if isinstance(result, Outcome)],
        )

    async def _progress(self, group: str, position: Position) -> GroupProgress | None:
        if group not in self._consumers:
            self._consumers[group] = PullConsumer(group, instance=self._instance)
            await self._consumers[group].open()
        consumer = self._consumers[group]
        queue = MessageQueue(position.topic, position.broker, position.queue_id)
        try:
            progress = GroupProgress(await consumer.committed(queue), await consumer.max_offset(queue))
        except MQError as error:
            self._outages.failed(f"query of the offsets of group {group}{self._of_tenant}", error)
            return None
        self._outages.succeeded(f"query of the offsets of group {group}{self._of_tenant}")
        return progress

    async def _dead_letters(self, group: str, message_id: str) -> int | None:
        """Count the copies in the group's dead letter queue; None if the query fails."""
        found = await self._copies(dlq_topic(group), message_id, f"search of the dead letters of group {group}")
        return None if found is None else len(found)

    async def _is_retried(self, group: str, message_id: str) -> bool | None:
        topic, what = retry_topic(group), f"search of the retries of group {group}"
        retried = await self._copies(topic, message_id, what)
        if retried:
            return True
        delayed = await self._copies(SCHEDULE_TOPIC, message_id, what)
        if any(copy.properties.get(properties.REAL_TOPIC) == topic for copy in delayed or ()):
            return True
        return None if retried is None or delayed is None else False

    async def _copies(self, topic: str, message_id: str, what: str) -> Sequence[MessageExt] | None:
        """Return the copies of a message in a topic; None if any broker fails, which is logged as `what`."""
        try:
            found = await self._admin.messages.query_by_unique_key(topic, message_id)
            if found.failures:
                raise next(iter(found.failures.values()))
        except TopicNotFound:
            return ()
        except MQError as error:
            self._outages.failed(what + self._of_tenant, error)
            return None
        self._outages.succeeded(what + self._of_tenant)
        return found.messages


def sent_stub_of(row: Row[Any]) -> SentStub:
    has_position = row.broker is not None and row.queue_offset is not None
    position = Position(row.topic, row.broker, row.queue_id, row.queue_offset) if has_position else None
    return SentStub(row.sends, row.shard_key is not None, row.age_ms, position, row.dead_letters, row.reopened_ms_ago)


def receipts_of(connection: Connection, tables: Tables, rows: Sequence[Row[Any]]) -> dict[tuple[str, str], int]:
    """Return the age of the stubs' receipts in milliseconds, by message id and group."""
    receipt = tables.receipt
    message_ids = [row.message_id for row in rows]
    columns = [receipt.c.message_id, receipt.c.consumer_group, (now_ms() - receipt.c.received_at).label("age_ms")]
    found: Select[Any] = select(*columns)
    if connection.dialect.name == "postgresql":
        # A search of the index for each id. Without statistics, a comparison with all ids would scan the table.
        ids = cast(message_ids, ARRAY(receipt.c.message_id.type))
        wanted = func.unnest(ids).table_valued("message_id", name="wanted").render_derived()
        of_message = found.where(receipt.c.message_id == wanted.c.message_id).offset(0).lateral("of_message")
        found = select(of_message).select_from(wanted).join(of_message, true())
    else:
        found = found.where(receipt.c.message_id.in_(message_ids))
    return {(row.message_id, row.consumer_group): row.age_ms for row in connection.execute(found)}
