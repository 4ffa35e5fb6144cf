"""HA service of a master: sends the log to slaves and tracks their replication lag.

Protocol on each connection (frames: `rucola.protocol.replication`):

1. The slave connects and reports the physical offset to start at; 0 means that it has no log. If it supports epochs,
   both sides exchange theirs before that (`ha_handshake`). A fenced master serves no slaves. Only from its first report
   does the slave count for maxSlaves. It has haHousekeepingInterval for that, since Apache's slave is silent for its
   haSendHeartbeatInterval, 5 s, after it has connected.
2. The master checks it. After the end of the log, or before its start, the logs have diverged, or retention has deleted
   the range. The master closes the connection and logs what the operator can do.
3. The master sends the log from there, in transfers of haTransferBatchSize at most, straight from the mapped file. For
   0 it starts with the oldest file of the log, or with the newest (haTransferFrom). While the slave lags by
   haSlaveFallbehindMax, haCatchUpRate limits the bytes per second; a SYNC_MASTER does not wait for that slave.
4. At the end of its log the master waits. A record that is put then is sent at the end of that iteration of the event
   loop, as far as the kernel takes it. After haSendHeartbeatInterval it sends an empty transfer, sooner if the visible
   end has changed (`visible_end`), which is in the headers for slaves that support epochs.
5. The slave reports its progress: it has every byte before that offset. A slave that reports nothing for
   haHousekeepingInterval is disconnected.

A SYNC_MASTER answers SEND_OK after a slave has reported the message (`when_replicated`). Senders of one iteration wait
together, since their messages are sent together; each is answered for its own message. The wait ends after
slaveTimeout. It fails immediately if no slave is connected or all lag by haSlaveFallbehindMax, and when the last slave
disconnects; but a new master waits EXPECTED_S for the members of its in-sync set, which have everything, to connect to
it for the first time.

Corresponds to `HAService` and `HAConnection` of Apache RocketMQ 4.9.8. Deliberate differences: a slave without a log
gets all of it by default, where Apache sends the newest file; a slave that requests a range which the log does not
contain is disconnected with a log line that says what to do, where Apache sends nothing, or the bytes that are appended
there later; the lag is of the slaves connected now, and nothing waits for a slave that has disconnected.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final

from msgspec import Struct

from rucola.broker.background.scheduler import Scheduler
from rucola.broker.config import BrokerConfig, TransferFrom
from rucola.broker.delayed_operations import DelayedOperations
from rucola.broker.durability import Missing
from rucola.broker.mastership import Mastership
from rucola.broker.replication.ha_handshake import as_epochs, welcome
from rucola.broker.replication.side import Replication
from rucola.broker.replication.transfer_progress import Pace, TransferProgress
from rucola.broker.role import SlaveProgress
from rucola.epochs import divergence
from rucola.errors import MQError, RemotingConnectError, StoreError
from rucola.outages import log_rate_limited
from rucola.protocol.replication import (
    MAX_TRANSFER_SIZE,
    NO_VISIBLE_END,
    ReportDecoder,
    encode_header,
    encode_report,
)
from rucola.protocol.replication_epochs import Greeting
from rucola.remoting.batching_event_loop import write_batching_of
from rucola.remoting.byte_stream import Stream, StreamServer, run_until_first_ends
from rucola.remoting.tls import ServerTls
from rucola.store.config import BrokerRole, PutMessageStatus
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

READ_SIZE = 8192
"""Bytes per read of reports, which have 8 bytes each."""
LOG_LAG_INTERVAL_MS = 60_000
EXPECTED_S = 1.0
"""Time that senders wait for in-sync slaves that have not connected to a new master yet."""
TELL_INTERVAL_S = 0.1
"""Time without data after which slaves get a new visible end."""

_TIMED_OUT: Final[Missing] = (
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
    "stored, but not replicated in time (slaveTimeout)",
)
_NO_SLAVE: Final[Missing] = (
    PutMessageStatus.SLAVE_NOT_AVAILABLE,
    "stored, but no slave is connected, or all lag too far (brokerRole=SYNC_MASTER, haSlaveFallbehindMax)",
)


class _HAConnection:
    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.peer = stream.peer
        """The slave's "ip:port"."""
        self.reported = -1
        """The slave has every byte before this physical offset; -1 until its first report."""
        self.position = 0
        """Everything of the log before it is sent."""
        self.is_caught_up = False
        """Whether `_send` waits at the end of the log, so that others may send."""
        self.wake = asyncio.Event()
        """Set to wake `_send`."""
        self.heartbeat: asyncio.TimerHandle | None = None
        self.dropped = asyncio.Event()
        """Set to close it."""
        self.logged_lag = -1
        """The replication lag in the last line about it; -1 before the first."""
        self.progress: TransferProgress | None = None
        """None until the transfer starts."""
        self.member_id: int | None = None
        """The slave's brokerId, if it supports epochs."""
        self.address = stream.peer
        """The slave's address for clients, if it supports epochs."""
        self.knows_epochs = False
        self.told_end = NO_VISIBLE_END
        """The last visible end that the slave got."""


class _Senders(Struct, eq=False, gc=False):
    """The senders of one iteration of the event loop, which wait together."""

    is_expecting: bool
    """Whether they wait only because members of the in-sync set may connect soon."""
    waiting: deque[tuple[int, Callable[[Missing | None], None]]]
    """The end of each message and what to call, in the order of the log."""


class HAService(Replication):
    """Replication of one store to its slaves, with `tls` as on the broker's port. Belongs to one event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        mastership: Mastership,
        tls: ServerTls | None,
        admission: Callable[[Stream], Awaitable[bytes]] | None,
        on_visible_end: Callable[[int], None],
        on_joined: Callable[[int], Awaitable[None]],
    ) -> None:
        self._config = config
        self._mastership = mastership
        self._admission = admission
        """Authenticates a slave; returns the bytes that it read of its first report."""
        self._store = store
        self._is_sync = store.config.broker_role is BrokerRole.SYNC_MASTER
        self._on_visible_end = on_visible_end
        self._on_joined = on_joined
        self._visible_end = NO_VISIBLE_END
        """Up to here all in-sync slaves of a SYNC_MASTER have, or had, the log."""
        self._in_sync: frozenset[int] | None = None
        """Slaves that must confirm a message before it is acknowledged; None if one is enough, as in 4.9.8."""
        self._expected: frozenset[int] = frozenset()
        """Members of the in-sync set of the start that have not connected to this master yet."""
        self._loop = asyncio.get_running_loop()
        self._batching = write_batching_of(self._loop)
        self._is_sending = False
        """Whether `_send_new` will be called."""
        # A transfer that took longer than a second could be taken for silence.
        self._batch = min(
            config.ha_transfer_batch_size, config.ha_catch_up_rate or MAX_TRANSFER_SIZE, MAX_TRANSFER_SIZE
        )
        self._reported = asyncio.Event()
        self._connections: dict[_HAConnection, None] = {}  # a set in order, as `RemotingServer.connections`
        self._waiting: DelayedOperations[_Senders] = DelayedOperations(self._try_complete)
        self._newest: _Senders | None = None
        """Those of this iteration."""
        self._replicated_end = -1
        """All slaves that must confirm a message have the log up to here; -1 without any."""
        self._server = StreamServer(
            config.bind_address,
            config.ha_listen_port,
            self._serve,
            tls,
            max_streams=config.max_slaves,
            limit="maxSlaves",
        )

    def start(self, scheduler: Scheduler, running: AsyncExitStack) -> None:
        """Listen for slaves, and store the chosen port in the configuration. Raises RemotingError."""
        scheduler.every(LOG_LAG_INTERVAL_MS, "log replication lag", self.log_replication_lag)
        self._expected = self._in_sync or frozenset()
        self._server.start()
        self._config.ha_listen_port = self._server.port
        # Closes the listening socket and all connections, which fails the waiting senders.
        running.push_async_callback(self._server.stop)

    def confirmed(self) -> dict[int, int]:
        return {
            connection.member_id: connection.reported
            for connection in self._connections
            if connection.member_id is not None and connection.reported >= 0
        }

    async def wait_confirmed(self, member_id: int, physical_offset: int) -> None:
        while self.confirmed().get(member_id, -1) < physical_offset:
            self._reported.clear()
            self.on_put()
            await self._reported.wait()

    def slaves(self) -> list[SlaveProgress]:
        members = self._in_sync
        return [
            SlaveProgress(
                connection.address,
                connection.member_id,
                connection.reported,
                None if members is None else connection.member_id in members,
            )
            for connection in self._connections
            if connection.reported >= 0
        ]

    def set_in_sync(self, members: frozenset[int], visible_end: int | None = None) -> None:
        if self._is_sync and not members:
            self._visible_end = NO_VISIBLE_END
        elif self._is_sync and self._visible_end == NO_VISIBLE_END:
            # The end visible while no slave was required stays: a slave joins the in-sync set once it has that, and
            # until then no other broker can be elected.
            end = self._store.max_physical_offset
            if self._in_sync is None:
                # Without an in-sync set its last master sent no end. Not all members may have what this one has.
                end = visible_end if visible_end is not None and visible_end <= end else 0
            self._visible_end = end
        self._expected &= members
        self._in_sync = members
        self._on_progress()

    def _on_progress(self) -> None:
        self._replicated_end = end = self._confirmed_end()
        if self._is_sync and self._in_sync is not None:
            self._visible_end = max(self._visible_end, end)  # it never moves back, even if a slave disconnects
            self._on_visible_end(self._visible_end)
        self._waiting.wake_all()

    def disconnect_slave(self, member: int) -> None:
        for connection in self._connections:
            if connection.member_id == member:
                connection.member_id = None
                connection.dropped.set()
        self._replicated_end = self._confirmed_end()

    def _confirmed_end(self) -> int:
        if self._in_sync is None:
            return max([connection.reported for connection in self._connections], default=-1)
        confirmed = self.confirmed()
        # Without any slave in sync, a SYNC_MASTER has no second copy.
        # For example, in sync 2 and 3, and confirmed 2: 900, 3: 700, 4: 950: the log counts as replicated up to 700.
        return min([confirmed.get(member, -1) for member in self._in_sync], default=-1)

    def log_replication_lag(self) -> None:
        end, now_s = self._store.max_physical_offset, asyncio.get_running_loop().time()
        for connection in self._connections:
            lag = end - connection.reported
            # An idle pair has nothing to say after the line that it is equal.
            if connection.reported >= 0 and (lag or connection.logged_lag != 0):
                connection.logged_lag = lag
                far = "" if connection.progress is None else connection.progress.text(connection.reported, end, now_s)
                logger.info("replication lag of slave %s: %d bytes%s", connection.peer, lag, far)

    def on_put(self) -> None:
        """Send new records at the end of this iteration of the event loop."""
        if not self._is_sending:
            self._is_sending = True
            self._batching.call_at_iteration_end(self._send_new)

    def _send_new(self) -> None:
        self._is_sending, self._newest = False, None
        for connection in self._connections:
            if connection.is_caught_up and not self._send_now(connection):
                connection.is_caught_up = False
                self._loop.call_soon_threadsafe(connection.wake.set)  # the loop may be about to wait

    def _send_now(self, connection: _HAConnection) -> bool:
        """Send up to the end of the log without waiting; return False if `_send` has to continue."""
        if self._config.ha_catch_up_rate and self._is_behind(connection):
            return False
        held = self._store.hold_bytes(connection.position, self._batch)
        if held is None:
            return True
        with held:
            header = self._header(connection, connection.position, len(held))
            is_sent = connection.stream.write_now(header, held.view)
            connection.position += len(held)
        return is_sent and connection.position == self._store.max_physical_offset

    def when_replicated(self, physical_offset: int, done: Callable[[Missing | None], None]) -> None:
        """Call `done` with None once a slave has everything below `physical_offset`, else with what is missing."""
        # The lag is checked before this message counts as replicated, as Apache does.
        farthest = self._replicated_end
        is_behind = farthest < 0 or physical_offset - farthest >= self._config.ha_slave_fallbehind_max
        if is_behind and not self._expected:
            done(_NO_SLAVE)
        elif farthest >= physical_offset:
            done(None)
        else:
            senders = self._newest
            if senders is None or senders.is_expecting is not is_behind:
                timeout_s = self._config.slave_timeout / 1000
                senders = self._newest = _Senders(is_behind, deque())
                self._waiting.add(senders, min(timeout_s, EXPECTED_S) if is_behind else timeout_s)
                self.on_put()  # without this, they would wait for the next dispatch, up to 5 ms
            senders.waiting.append((physical_offset, done))

    def _try_complete(self, senders: _Senders, is_last: bool) -> bool:
        end, waiting = self._replicated_end, senders.waiting
        missing = _TIMED_OUT
        if senders.is_expecting if is_last else end < 0 and not self._expected:
            missing, is_last = _NO_SLAVE, True
        while waiting and (is_last or waiting[0][0] <= end):
            physical_offset, done = waiting.popleft()
            try:
                done(None if physical_offset <= end else missing)
            except Exception:  # the others do not wait longer
                logger.exception("a sender that waited for a slave was not answered")
        if not waiting and senders is self._newest:
            self._newest = None
        return not waiting

    async def _serve(self, stream: Stream) -> None:
        connection = _HAConnection(stream)
        try:
            await run_until_first_ends(
                self._receive(connection, stream), self._send(connection, stream), _until_dropped(connection)
            )
        except MQError as error:
            # Slaves reconnect every few seconds, and a peer can vary the reason by what it reports.
            kind = f"{type(error).__name__} of a slave"
            log_rate_limited(logger, logging.WARNING, kind, "slave %s disconnected: %s", connection.peer, error)
        finally:
            self._connections.pop(connection, None)
            self._on_progress()

    async def _receive(self, connection: _HAConnection, stream: Stream) -> None:
        decoder = ReportDecoder()
        interval_ms = self._config.ha_housekeeping_interval
        try:
            async with asyncio.timeout(interval_ms / 1000):  # for all of it, however slowly it arrives
                begins = decoder.receive_data(await self._welcome(connection, stream))
        except TimeoutError:
            raise StoreError(f"no first report within {interval_ms} ms (haHousekeepingInterval)") from None
        if not self._server.admit(stream):
            return
        self._connections[connection] = None
        for physical_offset in begins:
            self._on_report(connection, physical_offset)
        if connection.member_id is not None:
            await self._on_joined(connection.member_id)

        def take(data: bytes) -> bool:
            for physical_offset in decoder.receive_data(data):
                self._on_report(connection, physical_offset)
            return True

        try:
            await stream.read_until(READ_SIZE, take, interval_ms / 1000)
        except TimeoutError:
            raise StoreError(f"no report within {interval_ms} ms (haHousekeepingInterval)") from None
        raise RemotingConnectError("it closed the connection")

    async def _welcome(self, connection: _HAConnection, stream: Stream) -> bytes:
        received = b"" if self._admission is None else await self._admission(stream)
        mastership, store = self._mastership, self._store
        if not mastership.is_valid:
            raise StoreError("this broker is fenced: another one is master")
        greeting = Greeting(
            mastership.epoch,
            store.min_physical_offset,
            store.max_physical_offset,
            self._is_sync,
            mastership.epochs.epochs,
        )
        join, received = await welcome(stream, received, greeting, self._config.ha_housekeeping_interval)
        if join is None:
            return received
        if join.newest_epoch > mastership.epoch:
            mastership.fence(join.newest_epoch, f"the broker that slave {stream.peer} has followed")
            raise StoreError(f"it has followed a master of epoch {join.newest_epoch}")
        point = divergence(as_epochs(join.epochs), join.end, mastership.epochs.epochs, greeting.end)
        if point < join.end:
            raise StoreError(
                f"its log ends at {join.end}, and that of this master at {greeting.end}; they are equal up to {point}. "
                "If that slave was master, it sets the rest aside and follows. If this master has lost messages, "
                f"{'a switchover to' if self._config.coordination.is_enabled else '`rucola admin promote` on'} "
                "the slave keeps them"
            )
        for other in self._connections:
            if other.member_id == join.member_id and other.address != join.address:
                raise StoreError(
                    f"its brokerId {join.member_id} is that of the slave at {other.address} as well: give the one at "
                    f"{join.address} another brokerId in its broker.conf"
                )
        # A connection that this slave had before may be half-open, and what it confirmed by it not its own any more.
        self.disconnect_slave(join.member_id)
        connection.member_id, connection.address, connection.knows_epochs = join.member_id, join.address, True
        return encode_report(join.begin)

    def _on_report(self, connection: _HAConnection, physical_offset: int) -> None:
        """Process a report; the first is the offset to start at. Raises StoreError if the logs have diverged."""
        end = self._store.max_physical_offset
        if physical_offset > end:
            raise StoreError(
                f"its log ends at {physical_offset}, and that of this master at {end}: this master has lost messages "
                "that the slave has, or the slave followed another master. To keep the slave's messages, stop both and "
                "start the slave's directory as master; to drop them, stop the slave and remove its store directory"
            )
        if connection.reported < 0:
            connection.wake.set()
            self._expected -= {connection.member_id}
        connection.reported = physical_offset
        self._tell_soon(connection)
        self.last_confirmed = max(self.last_confirmed, physical_offset)
        self._reported.set()
        self._on_progress()

    async def _send(self, connection: _HAConnection, stream: Stream) -> None:
        connection.position = await self._begin(connection)
        loop = self._loop
        connection.progress = TransferProgress(connection.position, loop.time())
        rate = self._config.ha_catch_up_rate
        pace = Pace(rate, loop.time)
        while True:
            held = self._store.hold_bytes(connection.position, self._batch)
            if held is not None:
                with held:  # the mapped file may be closed only after the kernel has taken the bytes
                    size = len(held)
                    await stream.write(self._header(connection, connection.position, size), held.view)
                    connection.position += size
                if rate and self._is_behind(connection):
                    await asyncio.sleep(pace.delay_s(size))
                elif connection.position < self._store.max_physical_offset:
                    # Yield: a write that the kernel accepts at once does not suspend.
                    await asyncio.sleep(0)
            elif connection.position < self._store.min_physical_offset:
                raise StoreError(
                    f"it needs the log from {connection.position}, which now begins at "
                    f"{self._store.min_physical_offset}: stop the slave, remove its store directory, and start it again"
                )
            else:
                connection.wake.clear()
                connection.is_caught_up = True
                self._set_heartbeat(connection, self._config.ha_send_heartbeat_interval / 1000)
                self._tell_soon(connection)
                try:
                    await connection.wake.wait()
                finally:
                    connection.is_caught_up = False
                    self._set_heartbeat(connection, None)
                # The rest of what was sent without waiting, if there is one, goes before it.
                await stream.write(self._header(connection, connection.position, 0))

    def _is_behind(self, connection: _HAConnection) -> bool:
        return self._store.max_physical_offset - connection.reported >= self._config.ha_slave_fallbehind_max

    def _set_heartbeat(self, connection: _HAConnection, wait_s: float | None) -> None:
        if connection.heartbeat is not None:
            connection.heartbeat.cancel()
        connection.heartbeat = None if wait_s is None else self._loop.call_later(wait_s, connection.wake.set)

    def _tell_soon(self, connection: _HAConnection) -> None:
        """Let a slave that has everything know the visible end."""
        if connection.told_end >= connection.position or connection.heartbeat is None:
            return
        if connection.heartbeat.when() - self._loop.time() > TELL_INTERVAL_S:
            self._set_heartbeat(connection, TELL_INTERVAL_S)

    def _header(self, connection: _HAConnection, physical_offset: int, size: int) -> bytes:
        if not connection.knows_epochs:
            return encode_header(physical_offset, size)
        connection.told_end = self._visible_end
        return encode_header(physical_offset, size, connection.told_end)

    async def _begin(self, connection: _HAConnection) -> int:
        while connection.reported < 0:
            connection.wake.clear()
            await connection.wake.wait()
        position = connection.reported
        if not position and self._config.ha_transfer_from is TransferFrom.begin:
            position = self._store.min_physical_offset
        elif not position:
            end = self._store.max_physical_offset
            # The newest file: with an end of 2,300 and files of 1,000 bytes it begins at 2,000.
            position = end - end % self._store.config.mapped_file_size_commit_log
        logger.info(
            "slave %s requests the log from %d and gets it from %d", connection.peer, connection.reported, position
        )
        return position


async def _until_dropped(connection: _HAConnection) -> None:
    await connection.dropped.wait()
    raise RemotingConnectError("closed: the slave has a newer connection, or another log than before")
