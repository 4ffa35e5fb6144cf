"""How far a group has come in each queue, and who keeps that.

    clustering      the broker that has the queue, for the whole group
    broadcasting    a file of this client, since each member has a progress of its own:

        <root>/<clientId>/<group>/offsets.json      {"offsetTable":{{"brokerName":…,"queueId":…,"topic":…}:offset}}

`root` is `~/.rocketmq_offsets` unless another is given. The file is written as a whole, with the content before in
offsets.json.bak, which is read where the file itself cannot be.

Answers to `RemoteBrokerOffsetStore` and `LocalFileOffsetStore` of Apache RocketMQ 4.9.8, whose file this is.
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
from rucola.errors import ConfigError, MQError, RemoteProtocolError
from rucola.files import make_directory, replace_file
from rucola.protocol.group import decode_offset_table
from rucola.protocol.queue import MessageQueue, to_key

logger = logging.getLogger(__name__)

ROOT = ".rocketmq_offsets"
"""The directory of all files of offsets, in the user's home."""


class OffsetStore(Protocol):
    """Where progress is kept."""

    goes_with_pulls: bool
    """Whether a pull may carry the offset to commit."""

    async def open(self) -> None:
        """Make sure that progress can be kept. ConfigError."""

    async def read(self, queue: MessageQueue) -> int | None:
        """The committed offset, None where there is none. RemotingError, ConfigError."""

    async def commit(self, *queues: AssignedQueue) -> None:
        """Keep how far these are done, where that has changed. What fails is logged and tried again next time."""


class BrokerOffsetStore:
    """Progress of the group, kept by the brokers. In order it does not go with pulls, which ask for no lock."""

    def __init__(self, pulls: PullConsumer, *, in_order: bool) -> None:
        self.goes_with_pulls = not in_order
        self._pulls = pulls

    async def open(self) -> None:
        pass

    async def read(self, queue: MessageQueue) -> int | None:
        return await self._pulls.committed(queue)

    async def commit(self, *queues: AssignedQueue) -> None:
        await asyncio.gather(*(self._commit(own) for own in queues))

    async def _commit(self, own: AssignedQueue) -> None:
        offset = own.progress.commit_offset
        if offset == own.committed:
            return
        try:
            await self._pulls.commit(own.queue, offset)
        except MQError as error:
            logger.warning(
                "group %s: offset %d of %s could not be committed: %s", self._pulls.group, offset, own.queue, error
            )
        else:
            # What a slave has noted is told to the master, too, once there is one.
            if self._pulls.instance.routes.address(own.queue.broker_name) is not None:
                own.committed = offset


class LocalOffsetStore:
    """Progress of this member alone, kept in its file. ConfigError if the user has no home and no `root` is given."""

    def __init__(self, root: str | Path | None, client_id: str, group: str) -> None:
        self.goes_with_pulls = False
        directory = _default_root() if root is None else Path(root)
        self.path = directory / client_id / group / "offsets.json"
        self._offsets: dict[MessageQueue, int] | None = None
        self._writing = asyncio.Lock()

    async def open(self) -> None:
        directory = self.path.parent
        try:
            make_directory(directory)
            with TemporaryFile(dir=directory):
                pass
        except (OSError, ValueError) as error:  # ValueError: a path that no file can have
            raise ConfigError(
                f"the offsets of this member cannot be kept in {directory}: {error}; give another offsets_root"
            ) from error
        self._table()

    async def read(self, queue: MessageQueue) -> int | None:
        return self._table().get(queue)

    async def commit(self, *queues: AssignedQueue) -> None:
        async with self._writing:
            changed = {own: own.progress.commit_offset for own in queues if own.progress.commit_offset != own.committed}
            if not changed:
                return
            table = self._table()
            table.update((own.queue, offset) for own, offset in changed.items())
            content = {"offsetTable": {to_key(queue): offset for queue, offset in sorted(table.items())}}
            try:
                await self._write(fastjson.dumps(content))
            except OSError as error:
                logger.warning("the offsets of this member could not be written: %s", error)
            else:
                for own, offset in changed.items():
                    own.committed = offset

    async def _write(self, content: bytes) -> None:
        try:
            writing = asyncio.get_running_loop().run_in_executor(None, replace_file, self.path, content)
        except RuntimeError:  # the program ends, when thread pools take no more calls
            replace_file(self.path, content)
        else:
            await writing

    def _table(self) -> dict[MessageQueue, int]:
        """All offsets, read from the file the first time. ConfigError where neither it nor its .bak can be read."""
        if self._offsets is None:
            self._offsets = self._load()
        return self._offsets

    def _load(self) -> dict[MessageQueue, int]:
        failures = []
        for path in (self.path, self.path.with_name(self.path.name + ".bak")):
            try:
                return decode_offset_table(path.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, RemoteProtocolError) as error:
                logger.warning("offsets cannot be read from %s: %s", path, error)
                failures.append(f"{path}: {error}")
        if failures:
            raise ConfigError(f"cannot tell how far this member has come; mend or remove {'; '.join(failures)}")
        return {}


def _default_root() -> Path:
    try:
        return Path.home() / ROOT
    except RuntimeError as error:
        raise ConfigError(f"there is no place for the offsets of this member: {error}; give offsets_root") from error
