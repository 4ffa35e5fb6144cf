"""HA client of a slave: copies the log of its master, and reports its progress.

The client connects to haMasterAddress or, if that is empty, to the master's HA address in the name servers. One
connection (`_ReplicationSession`) works as follows:

0. If the master supports epochs, compare them (`ha_handshake`). A log with bytes that the master lacks is cut off
   there, by the broker; this client then waits to be stopped. A master that closes the connection instead, again
   and again, may be Rucola from before epochs: one session leaves this step out.
1. Report an offset a little before the end of the log, at the start of a record (`Replica.begin`).
2. Receive the log from there. Compare it up to the slave's end: different bytes end the session, since the logs have
   diverged. Only then may the slave's end be reported.
3. Append the rest, and dispatch it like messages that were put. An epoch of the master is written to the slave's epoch
   file before its first byte. Consumers see the log up to the master's visible end.
4. Report the end after each read, in the same iteration of the event loop. With SYNC_FLUSH, report it after a flush, so
   that a SYNC_MASTER answers SEND_OK only for messages on the disk of the slave.
5. Repeat the last report every haSendHeartbeatInterval. End the session if nothing arrives for haHousekeepingInterval.
6. At the end, truncate a partial record: the master may have lost the rest of it.

Sessions are repeated until the broker stops. If the logs have diverged at a point that epochs do not show, nothing is
copied until an operator acts; the reason is logged once.

Corresponds to `HAService.HAClient` of Apache RocketMQ 4.9.8. Deliberate differences: Apache's slave starts at the end
of its log, and therefore does not notice that the logs have diverged; it reports bytes that are only in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from rucola.acl.credentials import Credentials
from rucola.broker.background.group_commit import GroupCommit
from rucola.broker.background.registration import Registration
from rucola.broker.background.scheduler import MESSAGES_PER_ITERATION, NEW_QUEUES_PER_ITERATION, in_thread
from rucola.broker.config import BrokerConfig
from rucola.broker.replication.ha_authentication import prove
from rucola.broker.replication.ha_handshake import LogDiverged, NoGreeting, as_epochs, greet
from rucola.epochs import Epoch, within
from rucola.errors import MQError, RemotingConnectError, StoreError
from rucola.outages import Outages
from rucola.protocol.replication import TransferDecoder, encode_report
from rucola.protocol.replication_epochs import Join
from rucola.remoting.byte_stream import Stream, open_stream, run_until_first_ends
from rucola.remoting.tls import ClientTls
from rucola.store.config import BrokerRole
from rucola.store.epoch_file import EpochFile
from rucola.store.message_store import MessageStore
from rucola.store.replica import Replica

logger = logging.getLogger(__name__)

# Subjects of the log. A reason of another kind, such as a diverged log after a lost connection, has its own.
SEARCH = "search for the master"
CONNECTION = "connection to the master"
COMPARISON = "comparison with the log of the master"
COPY = "copy of the log of the master"

_NEVER = 1 << 63
READ_SIZE = 64 * 1024
"""Bytes that are copied and parsed in one loop iteration."""
FIRST_WAIT_S = 0.1
"""Delay before the second connection attempt, soon after which a new master serves slaves; it doubles each time."""
WAIT_S = 1.0
"""Longest delay before the next attempt."""
LONG_WAIT_S = 5.0
"""Longest delay after a session that copied nothing, or failed locally."""
INTRODUCTIONS = 4
"""Attempts with epochs before one without: a master that is about to start or to stop may close connections, too."""
UNINTRODUCED_S = 600.0
"""How long a session without an introduction lasts: its master may be a newer one, which was not reached before."""

AHEAD_ADVICE = (
    "That master has lost messages that this slave has, and that may be acknowledged. Nothing is copied until this is "
    "resolved: `rucola admin promote` on this broker keeps them, `rucola admin demote` on it sets them aside and "
    "follows that master"
)
ELECTED_ADVICE = (
    "Nothing is copied until etcd names the master to follow. If it names that one for good, another broker of the "
    "in-sync set may have what it lacks: `rucola admin switchover` makes that one master"
)
DIVERGED_ADVICE = (
    "Nothing is copied until this is resolved. `rucola store check` on both directories, with the brokers stopped, "
    "shows whether one is damaged. To start over with the master's log, stop the slave, remove its store directory, "
    "and start it again"
)


@dataclass(slots=True)
class Follower:
    """What a slave and its master exchange about each other."""

    member_id: int
    """brokerId, unique among the brokers of one name."""
    address: str
    """Address for clients."""
    epochs: EpochFile
    on_diverged: Callable[[int], None]
    """Called with the physical offset at which the log has to be cut off."""
    may_cut: Callable[[], bool]
    """Whether the log may be cut off: if this broker was master itself, or has the order to follow."""
    on_followed: Callable[[BrokerRole], Awaitable[None]]
    """Called with the role of a master with epochs, once the logs are known to be equal."""
    on_visible_end: Callable[[int], None]
    """Called with the visible end, once the logs are known to be equal, and when it may have changed."""
    newest_epoch: int = 0
    """The newest epoch of a master that this slave has followed, or 0."""


class HAClient:
    """Client that follows the master of one store, by TLS if `tls` is given. Belongs to one event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        group_commit: GroupCommit,
        registration: Registration,
        follower: Follower,
        tls: ClientTls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        assert store.replica is not None
        self._credentials = credentials
        self._config = config
        self._store = store
        self._replica = store.replica
        self._follower = follower
        self._registration = registration
        self._tls = None if tls is None else tls.follow()
        self._group_commit = group_commit if store.config.is_sync_flush else None
        """None if bytes in memory are reported."""
        self._outages = Outages(logger)
        self._is_following = False
        self._is_connected = False
        self._address = ""
        self._refusals = 0
        """Introductions in a row at which the master closed the connection."""
        self._wait_s = FIRST_WAIT_S
        self._task: asyncio.Task[None] | None = None

    @property
    def is_following(self) -> bool:
        return self._is_following and self._is_connected

    def follows(self, address: str) -> bool:
        """Return whether the slave is connected to a master at this address, with an equal log."""
        return self.is_following and self._address == address

    @property
    def followed_epoch(self) -> int:
        return self._follower.newest_epoch

    @property
    def is_running(self) -> bool:
        """Whether the slave follows its master, connected or not."""
        return self._task is not None

    def start(self) -> None:
        self._wait_s = FIRST_WAIT_S
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End the session and wait for it, even if the caller is cancelled."""
        if (task := self._task) is None:
            return
        task.cancel()
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            await asyncio.wait([task])
            raise
        finally:
            self._task = None
        if not task.cancelled():
            task.result()

    async def _run(self) -> None:
        while True:
            address = self._config.ha_master_address or self._registration.master_ha_address
            longest_s = WAIT_S
            if address:
                longest_s = await self._follow(address)
            else:
                self._outages.failed(SEARCH, f"no name server has a master of {self._config.broker_name} yet")
            await asyncio.sleep(min(self._wait_s, longest_s))
            self._wait_s = min(2 * self._wait_s, LONG_WAIT_S)
            if not self._config.ha_master_address:  # the response of a registration contains the master's address
                self._registration.schedule()
                await self._registration.wait_registered()

    async def _follow(self, address: str) -> float:
        """Run one session; return the longest delay before the next one, in seconds."""
        self._is_following, self._address = False, address
        try:
            stream = await open_stream(address, self._tls)
        except MQError as error:
            self._outages.failed(CONNECTION, error)
            return WAIT_S
        try:
            await self._run_session(stream)
        except LogDiverged as error:
            if not self._follower.may_cut():
                advice = ELECTED_ADVICE if self._config.coordination.is_enabled else AHEAD_ADVICE
                self._outages.failed(COMPARISON, f"the master at {address}: {error}. {advice}")
                return LONG_WAIT_S
            logger.warning("the master at %s: %s", address, error)
            self._follower.on_diverged(error.physical_offset)
            return LONG_WAIT_S
        except StoreError as error:
            self._outages.failed(COMPARISON, f"the master at {address}: {error}. {DIVERGED_ADVICE}")
            return LONG_WAIT_S
        except MQError as error:
            self._refusals = self._refusals + 1 if isinstance(error, NoGreeting) else 0
            self._outages.failed(CONNECTION, f"the master at {address}: {error}")
        except OSError as error:
            self._outages.failed(COPY, f"the log of the master at {address} cannot be copied: {error}")
            return LONG_WAIT_S
        except Exception:
            logger.exception("following the master at %s failed", address)
            return LONG_WAIT_S
        if not self._is_following:
            return LONG_WAIT_S
        self._wait_s = FIRST_WAIT_S  # the master has gone
        return WAIT_S

    async def _run_session(self, stream: Stream) -> None:
        introduces = self._refusals < INTRODUCTIONS or self._config.coordination.is_enabled
        self._is_connected = True
        try:
            if self._credentials is not None:
                await prove(stream, self._credentials, self._config.ha_housekeeping_interval)
            session = _ReplicationSession(
                self._config, self._store, self._replica, self._follower, self._group_commit, stream, self._on_compared
            )
            async with asyncio.timeout(None if introduces else UNINTRODUCED_S) as limit:
                await session.run(introduces=introduces)
        except TimeoutError:
            if not limit.expired():
                raise
            self._refusals = INTRODUCTIONS - 1  # the next session introduces itself again
        finally:
            self._is_connected = False
            stream.close()
            await in_thread(
                self._replica.truncate
            )  # a partial record, which the master may lose, or bytes that are none

    def _on_compared(self) -> None:
        logger.info("the log equals the master's, and follows it from %d", self._store.max_physical_offset)
        for subject in (SEARCH, CONNECTION, COMPARISON, COPY):
            self._outages.succeeded(subject)
        self._is_following = True


class _ReplicationSession:
    """One connection to a master. `group_commit` is None if bytes in memory are reported."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        replica: Replica,
        follower: Follower,
        group_commit: GroupCommit | None,
        stream: Stream,
        on_compared: Callable[[], None],
    ) -> None:
        self._config = config
        self._store = store
        self._replica = replica
        self._follower = follower
        self._knows_epochs = False
        self._epochs: tuple[Epoch, ...] = ()
        self._adopts_at = _NEVER
        """The end of the log at which the next epochs are written to the slave's file."""
        self._master_role = BrokerRole.ASYNC_MASTER
        self._group_commit = group_commit
        self._stream = stream
        self._begin = self._replica.begin
        """Physical offset of the first report; the comparison starts there."""
        self._compared_end = store.max_physical_offset
        """End of the log at the start of the session; the comparison is complete there."""
        self._is_compared = False
        self._on_compared = on_compared
        self._decoder = TransferDecoder()
        self._reported = self._begin
        self._may_write = False
        """Whether `_send_reports` waits, so that others may send."""
        self._wake = asyncio.Event()
        """Set to wake `_send_reports`."""

    async def run(self, *, introduces: bool) -> None:
        """Copy and report until the connection ends. Always raises: StoreError, RemotingError or OSError."""
        # The first report confirms all before it. With SYNC_FLUSH that may still be in memory only: an earlier session
        # received it, and ended before the flush.
        if not await self._is_safe(self._begin):
            raise OSError(f"the log up to {self._begin} cannot be flushed")
        if introduces:
            first = await self._greet()
        else:
            first = b""
            await self._stream.write(encode_report(self._begin))
        await run_until_first_ends(self._receive(first), self._send_reports())

    async def _greet(self) -> bytes:
        follower, store = self._follower, self._store
        newest = max(follower.newest_epoch, follower.epochs.last.number)
        join = Join(
            follower.member_id, newest, self._begin, store.max_physical_offset, follower.address, follower.epochs.epochs
        )  # fmt: skip
        timeout_ms = self._config.ha_housekeeping_interval
        greeting, first = await greet(self._stream, join, store.min_physical_offset, timeout_ms)
        if greeting is not None:
            self._knows_epochs = True
            self._epochs = tuple(as_epochs(greeting.epochs))
            self._adopts_at = self._compared_end
            follower.newest_epoch = greeting.epoch
            self._master_role = BrokerRole.SYNC_MASTER if greeting.is_sync else BrokerRole.ASYNC_MASTER
        return first

    async def _adopt_epochs(self, end: int) -> None:
        """Write the master's epochs of a log up to `end`, before the log has these bytes."""
        # Epochs 7 at 0, 8 at 100 and 9 at 180, and a log up to 120: 7 and 8 are written now, 9 when the log reaches
        # 180.
        epochs = within(self._epochs, self._store.min_physical_offset, end)
        self._adopts_at = min([epoch.begin for epoch in self._epochs if epoch.begin > end], default=_NEVER)
        if epochs != self._follower.epochs.epochs:
            await in_thread(self._follower.epochs.replace, epochs)

    async def _receive(self, first: bytes) -> None:
        self._decoder = TransferDecoder(has_visible_end=self._knows_epochs)
        store = self._store
        data = first
        while True:
            # 1. Read. Heartbeats arrive even if there is no new message.
            data = data or await self._read()
            if store.write_state.failure is not None:
                raise OSError(store.write_state.failure)
            # 2. Compare with the own log, and append the bytes after its end.
            for physical_offset, piece in self._decoder.receive_data(data):
                await self._take(physical_offset, piece)
                if self._is_compared:
                    self._follower.on_visible_end(self._decoder.visible_end)
            data = b""
            self._report()
            # 3. Dispatch in bounded batches, yielding in between.
            while store.has_pending:
                store.reput(MESSAGES_PER_ITERATION, NEW_QUEUES_PER_ITERATION)
                if store.stall is not None:
                    raise OSError(store.stall)  # a later session continues; the master must not send more until then
                await asyncio.sleep(0)

    def _take_now(self, data: bytes) -> bool:
        """Append and report what arrives, and leave its dispatch to ReputService; False if that has to wait."""
        store = self._store
        if (
            not self._is_compared
            or self._adopts_at != _NEVER
            or store.pending_count > MESSAGES_PER_ITERATION
            or store.stall is not None
            or store.write_state.failure is not None
        ):
            return False
        for physical_offset, piece in self._decoder.receive_data(data):
            self._replica.append(physical_offset, piece)
            self._follower.on_visible_end(self._decoder.visible_end)
        self._report()
        return True

    async def _take(self, physical_offset: int, piece: memoryview) -> None:
        """Compare what the log had of a piece at the session's start; append the rest."""
        end = physical_offset + len(piece)
        if not self._is_compared:
            # With a log up to 500, a piece of 300 bytes from 400 on has 100 to compare and 200 to append.
            own = piece[: max(0, self._compared_end - physical_offset)]
            self._replica.append(physical_offset, own)
            physical_offset, piece = physical_offset + len(own), piece[len(own) :]
            if end >= self._compared_end:
                self._is_compared = True
                self._on_compared()
                if self._knows_epochs:
                    await self._follower.on_followed(self._master_role)
        if end >= self._adopts_at:
            await self._adopt_epochs(end)
        self._replica.append(physical_offset, piece)

    async def _read(self) -> bytes:
        """Return what arrives, after all that `_take_now` takes."""
        interval_ms = self._config.ha_housekeeping_interval
        try:
            data = await self._stream.read_until(READ_SIZE, self._take_now, interval_ms / 1000)
        except TimeoutError:
            raise RemotingConnectError(f"nothing arrived for {interval_ms} ms (haHousekeepingInterval)") from None
        if not data:
            raise RemotingConnectError("it closed the connection; its log has the reason if that was on purpose")
        return data

    def _report(self) -> None:
        """Report the end of the log, with SYNC_FLUSH after a flush."""
        end = self._store.max_physical_offset
        if not self._is_compared or end <= self._reported:
            return
        if self._group_commit is None:
            self._on_safe(end, True)
        else:
            timeout_ms = self._store.config.sync_flush_timeout
            self._group_commit.when_flushed(end, timeout_ms, partial(self._on_safe, end))

    def _on_safe(self, end: int, is_safe: bool) -> None:
        if is_safe and end > self._reported:
            self._reported = end
            if not self._may_write or not self._stream.write_now(encode_report(end)):
                self._wake.set()

    async def _send_reports(self) -> None:
        """Send what `_on_safe` cannot, and repeat the last report as a heartbeat."""
        while True:
            self._may_write = True
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.ha_send_heartbeat_interval / 1000):
                    await self._wake.wait()
            self._may_write = False
            self._wake.clear()
            await self._stream.write(encode_report(self._reported))
            self._report()  # again, if a flush has failed

    async def _is_safe(self, end: int) -> bool:
        if self._group_commit is None:
            return True
        return await self._group_commit.wait_flushed(end, self._store.config.sync_flush_timeout)
