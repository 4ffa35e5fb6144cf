"""Relay: sends messages of the outbox after their commit, checks unconfirmed ones and raises alerts.

Each round consists of these steps:

    renew     lanes, every third of a lease                                        `lane_leases`
    claim     a batch of due stubs, and count the send                             `stub_claims`
    check     SENT stubs that are due: wait, send again, STUCK, DEAD or MANUAL     `stub_checks`, `policy`
    send      NEW stubs and those to send again, in order per sharding key         `batch_sender`
    alert     MANUAL, STUCK and DEAD stubs that were not reported                  `alerts`
    record    all outcomes in one statement                                        `stub_claims`

While more stubs are due than one batch holds, two batches overlap: one is sent while the next is claimed, in the
transaction that records the previous one. A key that fails in a batch is not sent in the next one either.

Several relays share the work by lanes; any of them may stop, crash or pause at any time. Claims of a crashed relay end
with their lease; the stubs are then sent again with the same ids.

An idle relay runs less than one query per second, polling every `poll_ms`. Commits in its own process
(`Outbox.on_commit`) and PostgreSQL's NOTIFY wake it at once.

While brokers or the database are unreachable, no stub is claimed or counted: the relay probes with a growing pause, up
to 30 s.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Sequence, Set
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, NamedTuple, Self

from sqlalchemy import Connection, Engine, Row
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from rucola.admin import AdminClient
from rucola.client import Producer
from rucola.client.background_tasks import BackgroundTasks
from rucola.client.producer.options import SendTrace
from rucola.errors import MQError, RemotingError
from rucola.outages import Outages
from rucola.reliable import lane_leases, migration, operations, stub_claims
from rucola.reliable.alerts import BROKER_AWAY, Alert, Alerts, DueAlert
from rucola.reliable.batch_sender import BatchSender
from rucola.reliable.database import Database
from rucola.reliable.errors import ReliableError
from rucola.reliable.outbox import Outbox
from rucola.reliable.policy import Policy
from rucola.reliable.schema import MANUAL, NEW, Tables
from rucola.reliable.stub_checks import Checker, receipts_of
from rucola.reliable.stub_claims import Batch, KeyQueues, Outcome
from rucola.reliable.wakeup import Wakeup

logger = logging.getLogger(__name__)

PRODUCER_GROUP = "RUCOLA_RELAY"
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 30.0
AWAY_ALERT_S = 300.0
PURGE_PAUSE_S = 1.0
PURGE_INTERVAL_S = 600.0
PURGE_LANE = 0
"""The relay with this lane purges."""
CLOSE_GRACE_MS = 10_000


class ClaimedBatch(NamedTuple):
    """A batch, to be sent until `deadline` (loop time), by the queues of its keys; nothing of `stopped_keys`."""

    batch: Batch
    deadline: float
    stopped_keys: Set[str]
    key_queues: KeyQueues


class Relay:
    """Relays an outbox. `async with Relay(engine, "host:9876")` starts and stops it, on one event loop.

    `outbox` is an outbox of this process, whose commits wake the relay and whose tables are used. `trace` records the
    sends; a `producer` of your own has its own. `tenant` is named in the log. Without `listens`, the caller wakes the
    relay on NOTIFY. A `Database` is the caller's to close. Opening waits while the database is unreachable; SchemaError
    if the tables are missing or of another version.
    """

    def __init__(
        self,
        database: Database | Engine | AsyncEngine | str,
        namesrv: str | None = None,
        *,
        outbox: Outbox | None = None,
        tables: Tables | None = None,
        policy: Policy | None = None,
        alerts: Alerts | None = None,
        producer: Producer | None = None,
        trace: SendTrace | None = None,
        tenant: str = "",
        listens: bool = True,
    ) -> None:
        if producer is not None and trace is not None:
            raise ReliableError("give `trace` to the producer, or no producer")
        self.database = database if isinstance(database, Database) else Database(database)
        self._owns_database = self.database is not database
        self.tables = tables or (outbox.tables if outbox is not None else Tables())
        self.policy = policy or Policy()
        self.owner = f"{socket.gethostname()[:40]}-{secrets.token_hex(8)}"
        """Globally unique name in claims and leases."""
        self.sent = 0
        self._outbox = outbox
        self._alerts = alerts or Alerts()
        self._producer = producer or Producer(PRODUCER_GROUP, namesrv, trace=trace)
        self._owns_producer = producer is None
        self._background = BackgroundTasks()
        self._running = AsyncExitStack()
        # The batch that was claimed while another was sent, and the outcomes that are not recorded yet.
        self._ahead: ClaimedBatch | None = None
        self._outcomes: list[Outcome] = []
        self._is_last_empty = False
        self._pause_s = FIRST_PAUSE_S
        self._stopping = False
        self._outages = Outages(logger)
        self._listens = listens
        of_tenant = self._of_tenant = f" of {tenant}" if tenant else ""
        self._database_name = f"the database{of_tenant}"
        self._round_name = f"a round of the relay{of_tenant}"
        self._purge_name = f"the purge by the relay{of_tenant}"
        # Lanes held as of the last renewal; `_renew_at` is the loop time of the next one, a third of a lease later.
        self._lanes: frozenset[int] = frozenset()
        self._renew_at = 0.0
        # Loop time since which no broker has been reachable; None while one is.
        self._away_since: float | None = None
        self._purge_at = 0.0

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Check the tables and start the background task. If this fails, everything is closed again."""
        async with AsyncExitStack() as opening:
            wakeup = self._wakeup = Wakeup()
            opening.push_async_callback(wakeup.close)
            if self._owns_database:
                opening.push_async_callback(self.database.close)
            await self._check_tables()
            if self._owns_producer:
                await opening.enter_async_context(self._producer)
            self._admin = await opening.enter_async_context(AdminClient(self._producer.instance.connection))
            opening.push_async_callback(self._leave)
            self._checker = Checker(self._producer.instance, self._admin, self.policy, self._of_tenant)
            self._sender = BatchSender(self._producer, self.policy)
            if self._listens and self.database.dialect_name == "postgresql":
                wakeup.listen(self.database.url, self.tables.channel)
            if self._outbox is not None:
                opening.callback(self._outbox.on_commit(wakeup.wake))
            opening.push_async_callback(self._background.close, CLOSE_GRACE_MS)
            self._background.start(self._keep_relaying(), f"relay {self.owner}")
            self._running = opening.pop_all()

    async def _check_tables(self) -> None:
        """Check the tables as soon as the database is reachable."""
        while True:
            try:
                await self.database.run(migration.check, self.tables)
            except DBAPIError as error:
                if not await self.database.is_away(error):
                    raise
                self._outages.failed(self._database_name, error.orig)
                await self._pause()
            else:
                self._outages.succeeded(self._database_name)
                self._pause_s = FIRST_PAUSE_S
                return

    async def close(self) -> None:
        """Finish the current batch, release the lanes and close; unsent stubs are left to the next relay."""
        self._stopping = True
        self._wakeup.wake()
        await self._running.aclose()

    async def _leave(self) -> None:
        try:
            await self.database.run(lane_leases.leave, self.tables, self.owner)
        except DBAPIError as error:
            lanes = f"lanes{self._of_tenant}"
            logger.warning("%s could not be released and stay reserved until their lease ends: %s", lanes, error.orig)

    def wake(self) -> None:
        """Poll for due stubs now. Thread-safe."""
        self._wakeup.wake()

    async def _keep_relaying(self) -> None:
        while not self._stopping:
            try:
                # During an outage: pause, probe, and renew the lanes so that no other relay takes them over.
                if self._away_since is not None:
                    await self._pause()
                    if self._stopping or not await self._probe_broker():
                        await self._keep_lanes()
                        continue
                await self._keep_lanes()
                await self._purge()
                is_full = await self._round()
                self._outages.succeeded(self._database_name)
                self._outages.succeeded(self._round_name)
                if self._away_since is None:
                    self._pause_s = FIRST_PAUSE_S
                if not is_full and self._away_since is None and not self._stopping:
                    await self._idle()
            except DBAPIError as error:
                # Also deadlocks and lock timeouts: the transaction was rolled back, and claims end with their lease.
                self._outages.failed(self._database_name, error.orig)
                await self._pause()
            except Exception as error:
                # The task must not end: all messages would silently stop.
                if not self._outages.is_failing(self._round_name):
                    logger.exception("%s failed, with this traceback", self._round_name)
                self._outages.failed(self._round_name, error)
                await self._pause()

        try:
            # Finish the batch that was claimed ahead, and record what an outage of the database left over.
            await (self._record() if self._ahead is None else self._round())
        except DBAPIError as error:
            what = f"the last outcomes{self._of_tenant}"
            logger.warning("%s were not recorded; their claims end with the lease: %s", what, error.orig)

    async def _idle(self) -> None:
        """Wait until a stub is due, a commit wakes the relay, or the lanes must be renewed; one query per poll."""
        while not self._stopping and asyncio.get_running_loop().time() < self._renew_at:
            await self._purge()
            due_ms = await self.database.run_one(stub_claims.next_due_ms, self.tables, self._lanes)
            if due_ms is not None and due_ms <= 0:
                if not self._is_last_empty:
                    return
                due_ms = None  # due stubs cannot be claimed: another transaction has them, or the lane is lost
            wait_ms = self.policy.poll_ms if due_ms is None else min(due_ms, self.policy.poll_ms)
            if await self._wakeup.wait(wait_ms / 1000) or wait_ms == due_ms:
                return
            self._is_last_empty = False

    async def _pause(self) -> None:
        """Wait, twice as long as the last time; closing ends it early, a commit does not."""
        end = asyncio.get_running_loop().time() + self._pause_s
        self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)
        while not self._stopping and (left_s := end - asyncio.get_running_loop().time()) > 0:
            await self._wakeup.wait(min(left_s, 1.0))

    async def _keep_lanes(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._renew_at:
            self._lanes = await self.database.run(lane_leases.renew, self.tables, self.owner, self.policy.lease_ms)
            self._renew_at = now + self.policy.lease_ms / 3000

    async def _purge(self) -> None:
        """Delete some old rows, if the policy says so and it is time; the next ones after a pause."""
        age_ms, now = self.policy.purge_after_ms, asyncio.get_running_loop().time()
        if age_ms is None or now < self._purge_at or PURGE_LANE not in self._lanes:
            return
        self._purge_at = now + PURGE_INTERVAL_S
        try:
            if await self.database.run(operations.purge, self.tables, age_ms):
                self._purge_at = now + PURGE_PAUSE_S
        except ReliableError as error:  # stubs in other databases, which only the command can be told
            self._outages.failed(self._purge_name, error)
        else:
            self._outages.succeeded(self._purge_name)

    async def _round(self) -> bool:
        """Handle one batch while claiming the next; return whether more stubs may be due now."""
        claimed, self._ahead = self._ahead or await self._claim(()), None
        handling = asyncio.ensure_future(self._handle(claimed))
        try:
            # Record the last outcomes and claim the next batch while this one is sent: this doubles the rate.
            if claimed.batch.is_full and not self._stopping:
                self._ahead = await self._claim([row.seq for row in claimed.batch.to_send])
        finally:
            outcomes, unsent_keys, key_queues = await handling
            self._outcomes += outcomes
            if self._ahead is not None:
                # The claim did not see what was sent at the same time.
                key_queues = {**self._ahead.key_queues, **key_queues}
                self._ahead = self._ahead._replace(stopped_keys=unsent_keys, key_queues=key_queues)
        if self._ahead is not None and self._away_since is not None:
            # Claimed before the outage was noticed: no send is tried or counted.
            batch, self._ahead = self._ahead.batch, None
            self._outcomes += [Outcome(row.seq, NEW, NEW, wait_ms=0, is_unsent=True) for row in batch.to_send]
            others = [*batch.to_check, *batch.to_alert, *batch.exhausted]
            self._outcomes += [Outcome(row.seq, row.status, row.status, wait_ms=0) for row in others]
        if self._ahead is not None:
            return True
        # Due at once are alerts, and stubs that were not sent before the deadline.
        is_due = any(outcome.wait_ms == 0 for outcome in self._outcomes)
        await self._record()
        return claimed.batch.is_full or is_due

    async def _claim(self, in_flight: Sequence[int]) -> ClaimedBatch:
        # No request is started after half a lease: a slow or paused relay sends few stubs that another has claimed.
        deadline = asyncio.get_running_loop().time() + self.policy.lease_ms / 2000
        recorded = list(self._outcomes)

        def claim_batch(connection: Connection) -> Batch:
            stub_claims.record(connection, self.tables, self.owner, recorded)
            return stub_claims.claim_batch(
                connection, self.tables, self.owner, self._lanes, limit=self.policy.batch,
                lease_ms=self.policy.lease_ms, max_sends=self.policy.max_sends, in_flight=in_flight,
            )  # fmt: skip

        batch = await self.database.run(claim_batch)
        self._is_last_empty = not batch.rows
        # Outcomes of a transaction that failed are recorded with the next one, if the claims still hold.
        del self._outcomes[: len(recorded)]
        return ClaimedBatch(batch, deadline, frozenset(), batch.key_queues)

    async def _record(self) -> None:
        recorded = list(self._outcomes)
        if recorded:
            await self.database.run_one(stub_claims.record, self.tables, self.owner, recorded)
            del self._outcomes[: len(recorded)]

    async def _handle(self, claimed: ClaimedBatch) -> tuple[list[Outcome], Set[str], KeyQueues]:
        """Check, send and alert; return the unrecorded outcomes, keys with unsent stubs, and queues of those sent."""
        unsent_keys: Set[str] = frozenset()
        key_queues = claimed.key_queues
        batch = claimed.batch
        outcomes = [Outcome(row.seq, NEW, MANUAL, wait_ms=0) for row in batch.exhausted]  # with the last send's error
        # 1. Check sent stubs; lost ones join those to send.
        to_send: list[Row[Any]] = list(batch.to_send)
        if batch.to_check:
            resent, queues, checked = await self._check(batch.to_check)
            to_send += resent
            key_queues = {**queues, **key_queues}
            outcomes += checked
        # 2. Send, and record whether any broker responded.
        if to_send:
            sending = await self._sender.send(to_send, claimed.deadline, claimed.stopped_keys, key_queues)
            unsent_keys, key_queues = sending.unsent_keys, sending.key_queues
            outcomes += sending.outcomes
            self.sent += sum(outcome.broker is not None for outcome in sending.outcomes)
            is_away = not sending.answered and (
                sending.unreached > 0 or (sending.unrouted > 0 and not await self._addresses())
            )
            self._note_reachability(is_away, sending.error)
            if sending.queue_away is not None:
                await self._alert_away(*sending.queue_away)
        # 3. Raise alerts, at most one per kind and interval; the others stay due.
        if batch.to_alert:
            outcomes += await self._alert(batch.to_alert)
        return outcomes, unsent_keys, key_queues

    async def _check(self, rows: Sequence[Row[Any]]) -> tuple[Sequence[Row[Any]], KeyQueues, list[Outcome]]:
        receipts = await self.database.run_one(receipts_of, self.tables, rows)
        resend, outcomes = await self._checker.check(rows, receipts)
        if not resend:
            return [], {}, outcomes

        def claim(connection: Connection) -> tuple[Sequence[Row[Any]], KeyQueues]:
            claimed = stub_claims.claim_for_resend(connection, self.tables, self.owner, resend, self.policy.lease_ms)
            return claimed, stub_claims.key_queues(connection, self.tables, claimed)

        return *await self.database.run(claim), outcomes

    async def _alert(self, rows: Sequence[Row[Any]]) -> list[Outcome]:
        """Raise one alert for all due stubs of a kind, in this batch or not; later batches find them reported."""
        outcomes = []
        for kind in sorted({row.status for row in rows}):
            of_kind = [row for row in rows if row.status == kind]
            if self._alerts.wait_ms(kind) == 0 and not all(map(self._alerts.is_told, of_kind)):
                due = await self.database.run_one(stub_claims.due_alerts, self.tables, self._lanes, kind)
                due |= {DueAlert(row.seq, row.reopened_at) for row in of_kind}
                await self._alerts.tell(kind, of_kind, due)
            wait_ms = max(1, self._alerts.wait_ms(kind))
            for row in of_kind:
                is_told = self._alerts.is_told(row)
                outcomes.append(Outcome(row.seq, kind, kind, wait_ms=None if is_told else wait_ms))
        return outcomes

    def _note_reachability(self, is_away: bool, error: str) -> None:
        now = asyncio.get_running_loop().time()
        if not is_away:
            if self._away_since is not None:
                logger.info("brokers%s are reachable again after %d s", self._of_tenant, now - self._away_since)
            self._away_since = None
        elif self._away_since is None:
            logger.warning("no broker is reachable, messages wait in the outbox%s: %s", self._of_tenant, error)
            self._away_since = now
            self._away_error = error

    async def _alert_away(self, since: float, error: str) -> None:
        is_long = asyncio.get_running_loop().time() - since >= AWAY_ALERT_S
        if is_long and self._alerts.wait_ms(BROKER_AWAY) == 0:
            await self._alerts.raise_alert(Alert(BROKER_AWAY, 0, (), error))

    async def _addresses(self) -> set[str]:
        """Return all brokers' addresses. The name servers list one that died for two more minutes."""
        try:
            registered = (await self._admin.cluster.info()).broker_addr_table.values()
        except MQError:
            registered = ()  # type: ignore[assignment]
        known = [broker.broker_addrs for broker in registered] + list(self._producer.instance.routes.brokers.values())
        return {address for addresses in known for address in addresses.values()}

    async def _probe_broker(self) -> bool:
        """Return whether a broker accepts a connection, using up no send attempts. Alerts after five minutes."""
        assert self._away_since is not None
        await self._alert_away(self._away_since, self._away_error)
        instance = self._producer.instance
        try:
            async with asyncio.timeout(5):
                await instance.routes.refresh_all()
                for address in await self._addresses():
                    try:
                        await instance.remoting.connect(address)
                    except RemotingError:
                        continue
                    self._away_since = None
                    return True
        except (MQError, TimeoutError):
            pass
        return False
