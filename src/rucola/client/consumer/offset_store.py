"""Offset stores: where the committed offsets of a group are kept.

    clustering      at the broker that has the queue, for the whole group
    broadcasting    in a file of this member, whose previous content is kept in offsets.json.bak as a fallback:

        <root>/<clientId>/<group>/offsets.json      {"offsetTable":{{"brokerName":…,"queueId":…,"topic":…}:offset}}

`root` defaults to `~/.rocketmq_offsets`. Corresponds to `RemoteBrokerOffsetStore` and `LocalFileOffsetStore` of Apache
RocketMQ 4.9.8, whose file format this is.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from tempfile import TemporaryFile
from typing import Protocol

from rucola import fastjson
from rucola.client.consumer.assigned_queue import AssignedQueue
from rucola.client.consumer.pull_consumer import PullConsumer
from rucola.domain.queue import MessageQueue
from rucola.errors import ConfigError, MQError, RemoteProtocolError
from rucola.files import make_directory, replace_file
from rucola.outages import Outages
from rucola.protocol.group import decode_offset_table
from rucola.protocol.queue import to_key

logger = logging.getLogger(__name__)

ROOT = ".rocketmq_offsets"


class OffsetStore(Protocol):
    commits_with_pulls: bool
    """Whether a pull may carry the offset to commit, which spares a request."""

    async def open(self) -> None:
        """Check that offsets can be stored. ConfigError."""

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the committed offset, None if there is none. RemotingError, ConfigError."""

    async def commit(self, *queues: AssignedQueue) -> None:
        """Commit the offsets that changed. A failure is logged, and the next call repeats the commit."""


class BrokerOffsetStore:
    """The group's offsets at the brokers. Ordered consumers do not commit with pulls, which require no lock."""

    def __init__(self, pull_consumer: PullConsumer, *, in_order: bool) -> None:
        self.commits_with_pulls = not in_order
        self._pull_consumer = pull_consumer

    async def open(self) -> None:
        pass

    async def read(self, queue: MessageQueue) -> int | None:
        return await self._pull_consumer.committed(queue)

    async def commit(self, *queues: AssignedQueue) -> None:
        await asyncio.gather(*(self._commit(assigned) for assigned in queues))

    async def _commit(self, assigned: AssignedQueue) -> None:
        offset = assigned.process_queue.commit_offset
        if offset == assigned.committed:
            return
        outages = self._pull_consumer.instance.outages
        purpose = f"group {self._pull_consumer.group}: commit of the offset of {assigned.queue}"
        try:
            await self._pull_consumer.commit(assigned.queue, offset)
        except MQError as error:
            outages.failed(assigned.queue.broker_name, purpose, error)
        else:
            outages.succeeded(assigned.queue.broker_name, purpose)
            # A commit at a slave is repeated at the master, once there is one, since slaves forward no offsets.
            if self._pull_consumer.instance.routes.address(assigned.queue.broker_name) is not None:
                assigned.committed = offset


class LocalOffsetStore:
    """Offsets of this member, in its file. ConfigError without `root` if the user has no home directory."""

    def __init__(self, root: str | Path | None, client_id: str, group: str, *, discard_damaged: bool = False) -> None:
        self.commits_with_pulls = False
        directory = _default_root() if root is None else Path(root)
        self.path = directory / client_id / group / "offsets.json"
        self._discard_damaged = discard_damaged
        self._offsets: dict[MessageQueue, int] | None = None
        """The content of the file; None until it is read."""
        self._outages = Outages(logger)
        self._write_lock = asyncio.Lock()
        """Held during a commit, so that an older table never replaces a newer one."""

    async def open(self) -> None:
        self._write_lock = asyncio.Lock()
        directory = self.path.parent
        try:
            make_directory(directory)
            # Only writing shows whether a directory is writable, regardless of its permissions.
            with TemporaryFile(dir=directory):
                pass
        except (OSError, ValueError) as error:  # ValueError: not a valid path, such as one with a null byte
            raise ConfigError(
                f"cannot store the offsets of this member in {directory}: {error}; pass another offsets_root"
            ) from error
        self._table()

    async def read(self, queue: MessageQueue) -> int | None:
        return self._table().get(queue)

    async def commit(self, *queues: AssignedQueue) -> None:
        async with self._write_lock:
            offsets = {assigned: assigned.process_queue.commit_offset for assigned in queues}
            changed = {assigned: offset for assigned, offset in offsets.items() if offset != assigned.committed}
            if not changed:
                return
            # Queues that are not assigned now keep their entries, since they may be assigned again.
            table = self._table()
            table.update((assigned.queue, offset) for assigned, offset in changed.items())
            content = {"offsetTable": {to_key(queue): offset for queue, offset in sorted(table.items())}}
            try:
                await self._write(fastjson.dumps(content))
            except OSError as error:
                self._outages.failed(f"write of the offsets of this member to {self.path}", error)
            else:
                self._outages.succeeded(f"write of the offsets of this member to {self.path}")
                for assigned, offset in changed.items():
                    assigned.committed = offset

    async def _write(self, content: bytes) -> None:
        try:
            writing = asyncio.get_running_loop().run_in_executor(None, replace_file, self.path, content)
        except RuntimeError:  # thread pools accept no calls at the end of the program
            replace_file(self.path, content)
        else:
            await writing

    def _table(self) -> dict[MessageQueue, int]:
        """Return all offsets, read from the file the first time. ConfigError if neither it nor its .bak is readable."""
        if self._offsets is None:
            self._offsets = self._load()
        return self._offsets

    def _load(self) -> dict[MessageQueue, int]:
        damaged: dict[Path, Exception] = {}
        for path in (self.path, self.path.with_name(self.path.name + ".bak")):
            try:
                return decode_offset_table(path.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, RemoteProtocolError) as error:
                logger.warning("cannot read offsets from %s: %s", path, error)
                damaged[path] = error
        if not damaged:
            return {}
        if not self._discard_damaged or any(isinstance(error, OSError) for error in damaged.values()):
            failures = "; ".join(f"{path}: {error}" for path, error in damaged.items())
            raise ConfigError(
                f"cannot read the offsets of this member; repair or remove {failures}; with "
                "discard_damaged_offsets=True damaged files are set aside, and this member begins as a new one"
            )
        for path in damaged:
            path.replace(path.with_name(path.name + ".damaged"))
        logger.warning("the offsets of this member were damaged and are lost; it begins as a new one: %s", self.path)
        return {}


def _default_root() -> Path:
    try:
        return Path.home() / ROOT
    except RuntimeError as error:
        raise ConfigError(
            f"no directory for the offsets of this member: {error}; pass offsets_root", subject="offsets_root"
        ) from error
