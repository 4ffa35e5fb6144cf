"""Master: sends the log to slaves, and knows how far each has come.

A slave says where to begin and gets what lies there, in transfers of haTransferBatchSize at most, straight from the
mapped file; then what is put, as soon as it is dispatched or somebody waits for it. A slave with nothing asks for 0
and gets the newest file of the log, from its beginning on: what is older reaches it no more. One that is silent for
haHousekeepingInterval is let go.

A SYNC_MASTER answers SEND_OK when a slave has reported that it has the message (`wait_replicated`). All who wait
share the next
report. They wait for slaveTimeout; where no slave is there, or all are haSlaveFallbehindMax behind, for nothing, and
when the last one goes, no longer.

Answers to `HAService` and `HAConnection` of Apache RocketMQ 4.9.8. Deliberate differences: a slave that asks for what
the log does not have, or not yet, is sent away with a line that says what to do, where Apache sends it nothing or what
comes to lie there later; how far the slaves are is asked of those that are connected, and nobody waits
for one that has gone.
"""

from __future__ import annotations

import asyncio
import logging

from rucola.broker.config import BrokerConfig
from rucola.errors import MQError, RemotingConnectError, StoreError
from rucola.protocol.replication import MAX_TRANSFER_SIZE, ReportDecoder, encode_header
from rucola.remoting.stream import Stream, StreamServer, side_by_side
from rucola.store.config import PutMessageStatus
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

READ_SIZE = 8192


class _HAConnection:
    """A connected slave; `reported` is -1 until it has said where to begin."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.reported = -1
        self.wake = asyncio.Event()


class HAService:
    """The replication of one store to its slaves. Belongs to one event loop."""

    def __init__(self, config: BrokerConfig, store: MessageStore) -> None:
        self._config = config
        self._store = store
        self._slaves: set[_HAConnection] = set()
        self._waiting: list[tuple[int, asyncio.Future[bool]]] = []
        self._said: dict[str, str] = {}
        self._server = StreamServer(config.bind_address, config.ha_listen_port, self._serve)

    def start(self) -> None:
        """Listen for slaves. RemotingError where the port is taken."""
        self._server.start()
        self._config.ha_listen_port = self._server.port

    async def stop(self) -> None:
        """Send no more. Who waits still gets no answer from here."""
        await self._server.stop()

    def replication_lag(self) -> dict[str, int]:
        """How many bytes of the log each slave lacks, by its "ip:port", once it has said where to begin."""
        end = self._store.max_physical_offset
        return {slave.peer: end - slave.reported for slave in self._slaves if slave.reported >= 0}

    def log_replication_lag(self) -> None:
        """Log how far each slave is behind."""
        for peer, lacking in self.replication_lag().items():
            logger.info("slave %s is %d bytes behind", peer, lacking)

    def on_put(self) -> None:
        """Something was put: send it."""
        for slave in self._slaves:
            slave.wake.set()

    async def wait_replicated(self, physical_offset: int) -> PutMessageStatus:
        """Wait until a slave has everything below `physical_offset`."""
        farthest = max([slave.reported for slave in self._slaves], default=-1)
        if farthest < 0 or physical_offset - farthest >= self._config.ha_slave_fallbehind_max:
            return PutMessageStatus.SLAVE_NOT_AVAILABLE
        if farthest >= physical_offset:
            return PutMessageStatus.PUT_OK
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((physical_offset, done))
        self.on_put()
        try:
            async with asyncio.timeout(self._config.slave_timeout / 1000):
                is_there = await done
        except TimeoutError:
            return PutMessageStatus.FLUSH_SLAVE_TIMEOUT
        return PutMessageStatus.PUT_OK if is_there else PutMessageStatus.SLAVE_NOT_AVAILABLE

    async def _serve(self, stream: Stream) -> None:
        """One slave, until one side ends it."""
        slave = _HAConnection(stream.peer)
        self._slaves.add(slave)
        try:
            await side_by_side(self._receive(slave, stream), self._send(slave, stream))
        except MQError as error:
            self._say(slave, str(error))
        finally:
            self._slaves.discard(slave)
            if all(other.reported < 0 for other in self._slaves):
                self._end_waiting(self._store.max_physical_offset, is_there=False)

    def _say(self, slave: _HAConnection, why: str) -> None:
        """Log why a slave is let go, once for each machine: it will come again."""
        host = slave.peer.rpartition(":")[0]
        if self._said.get(host) != why:
            self._said[host] = why
            logger.warning("slave %s is let go: %s", slave.peer, why)

    async def _receive(self, slave: _HAConnection, stream: Stream) -> None:
        decoder = ReportDecoder()
        while True:
            try:
                async with asyncio.timeout(self._config.ha_housekeeping_interval / 1000):
                    data = await stream.read(READ_SIZE)
            except TimeoutError:
                raise StoreError(
                    f"it has said nothing for {self._config.ha_housekeeping_interval} ms (haHousekeepingInterval)"
                ) from None
            if not data:
                raise RemotingConnectError("it closed the connection")
            for physical_offset in decoder.receive_data(data):
                self._note(slave, physical_offset)

    def _note(self, slave: _HAConnection, physical_offset: int) -> None:
        """A slave has everything before that, or begins there."""
        end = self._store.max_physical_offset
        if physical_offset > end:
            raise StoreError(
                f"its log reaches to {physical_offset}, and that of this master only to {end}: this master has lost "
                "messages that the slave has, or the slave followed another. To keep what the slave has, stop both and "
                "start the slave's directory as master; to drop it, stop the slave and remove its store directory"
            )
        if slave.reported < 0:
            slave.wake.set()
        slave.reported = physical_offset
        self._end_waiting(physical_offset, is_there=True)

    def _end_waiting(self, physical_offset: int, *, is_there: bool) -> None:
        """Tell those who wait for what lies before `physical_offset` whether a slave has it."""
        waiting, self._waiting = self._waiting, []
        for item in waiting:
            if item[0] > physical_offset:
                self._waiting.append(item)
            elif not item[1].done():
                item[1].set_result(is_there)

    async def _send(self, slave: _HAConnection, stream: Stream) -> None:
        while slave.reported < 0:
            slave.wake.clear()
            await slave.wake.wait()
        store = self._store
        position = slave.reported
        if not position:
            end = store.max_physical_offset
            position = end - end % store.config.mapped_file_size_commit_log
        self._said.pop(slave.peer.rpartition(":")[0], None)
        logger.info("slave %s asks for %d and gets the log from %d on", slave.peer, slave.reported, position)
        batch = min(self._config.ha_transfer_batch_size, MAX_TRANSFER_SIZE)
        while True:
            slave.wake.clear()
            found = store.hold_bytes(position, batch)
            if found is None:
                if position < store.min_physical_offset:
                    raise StoreError(
                        f"it needs the log from {position} on, which begins at {store.min_physical_offset} by now: "
                        "stop the slave, remove its store directory, and start it again"
                    )
                try:
                    async with asyncio.timeout(self._config.ha_send_heartbeat_interval / 1000):
                        await slave.wake.wait()
                except TimeoutError:
                    await stream.write(encode_header(position, 0))
                continue
            file, data = found
            try:
                await stream.write(encode_header(position, len(data)), data)
                position += len(data)
            finally:
                data.release()
                file.release()
            # A write that the kernel takes at once waits for nothing, and others shall have a turn.
            await asyncio.sleep(0)
