"""Table synchronization: copies a master's metadata tables to a slave, about a second later.

    table                          request                                 effect on the slave
    topics                         GET_ALL_TOPIC_CONFIG (21)               replaced if the data version differs
    consumer groups                GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201)  replaced if the data version differs
    consumer offsets               GET_ALL_CONSUMER_OFFSET (43)            merged; the master's take precedence
    offsets of delayed delivery    GET_ALL_DELAY_OFFSET (45)               written to config/delayOffset.json; begin
                                                                           of the log, before which files may be deleted
    queue locks                    GET_ALL_QUEUE_LOCKS (20006)             replaced; not from Apache's master
    request modes                  GET_ALL_MESSAGE_REQUEST_MODE (402)      replaced; not from Apache's master

Progress of what the master delivers itself (`broker.delivery.progress`) counts its deliveries, and the begin of its log
what it has put again before it deleted files. They wait until the slave has these records on disk (`pending_progress`),
up to the end of the log that the master names with the table. Apache's master names neither begin nor end;
GET_BROKER_RUNTIME_INFO (28) returns both, requested after the table.

The tables are requested independently: a failure is logged, and repeated by the next run. A run every half second
requests the changes since the slave's versions. Every 10 s a run copies everything, so that an offset that a client
committed at the slave is replaced by the master's. From a master without versions (Apache's), only these runs copy. So
do the offsets of CID_RMQ_SYS_TRANS: half queue and op queue belong together, and a change may have one of them.

Corresponds to `SlaveSynchronize` of Apache RocketMQ 4.9.8. Deliberate difference: a message of an unknown topic starts
a run immediately, so that its messages can be read even if the master fails right after.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rucola import fastjson
from rucola.broker.background.registration import Registration
from rucola.broker.delivery.progress import Delivery
from rucola.broker.mastership import Mastership
from rucola.broker.replication.pending_progress import MasterProgress, PendingProgress
from rucola.broker.role import LogPosition
from rucola.broker.tables.groups import SubscriptionGroupTable
from rucola.broker.tables.offsets import ConsumerOffsetTable, parse_consumer_offsets
from rucola.broker.tables.queue_locks import QueueLockTable
from rucola.broker.tables.request_modes import RequestModeTable
from rucola.broker.tables.settings_table import SettingsTable
from rucola.broker.tables.topics import TopicConfigTable
from rucola.domain.group import MessageRequestModes
from rucola.domain.queue import QueueLocks
from rucola.errors import MQError, RemoteProtocolError, is_unreachable
from rucola.outages import Outages
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.kv import KVTable
from rucola.protocol.topic import TableCopyHeader, TableVersionHeader
from rucola.remoting.client import RemotingClient

logger = logging.getLogger(__name__)

COPY = "copy of the tables of the master"

SYNC_INTERVAL_MS = 500
RUNS_PER_FULL_COPY = 20


@dataclass(frozen=True, slots=True)
class _Answer:
    address: str
    header: TableCopyHeader
    body: bytes
    is_whole: bool
    """Whether the whole table was requested, and not its changes."""

    @property
    def version(self) -> str:
        return self.header.table_version or ""


class SlaveSynchronize:
    """Synchronizes with the master of the last registration. All methods must be called in one event loop."""

    def __init__(
        self,
        registration: Registration,
        client: RemotingClient,
        mastership: Mastership,
        topics: TopicConfigTable,
        groups: SubscriptionGroupTable,
        offsets: ConsumerOffsetTable,
        locks: QueueLockTable,
        modes: RequestModeTable,
        deliveries: Iterable[Delivery[Any]],
        clock: Callable[[], int],
    ) -> None:
        self._registration = registration
        self._client = client
        self._mastership = mastership
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._locks = locks
        self._modes = modes
        self._clock = clock
        self._outages = Outages(logger)
        self._runs = 0
        self._has_versions = False
        self._offsets_version = ""
        self._locks_version = ""
        self._pending = {delivery: PendingProgress[Any]() for delivery in deliveries}
        codes = {RequestCode[name] for delivery in self._pending if (name := delivery.copied_with) is not None}
        self._progress_codes = codes - {RequestCode.GET_ALL_CONSUMER_OFFSET}
        """Requests of tables that have only progress."""
        self._applied: dict[Delivery[Any], Any] = {}
        self._pending_log_begin: PendingProgress[int] = PendingProgress()
        self.log_begin = 0
        """Begin of the master's log. What it put again before it deleted older files, this slave has on disk."""
        self._unknown_topics: set[str] = set()
        """Topics without a configuration that arrived since the last periodic run."""
        self._early_run: asyncio.Task[None] | None = None
        """Started by an unknown topic."""

    def on_arrival(self, topic: str) -> None:
        """Start a run if the topic is unknown, once per topic between two periodic runs."""
        if self._topics.get(topic) is None and topic not in self._unknown_topics:
            self._unknown_topics.add(topic)
            # A running one sees the new topic: it repeats until no topic was added.
            if self._early_run is None or self._early_run.done():
                self._early_run = asyncio.create_task(self._run_early())

    async def stop(self) -> None:
        if self._early_run is not None:
            self._early_run.cancel()
            await asyncio.gather(self._early_run, return_exceptions=True)

    async def synchronize(self) -> None:
        """Copy the changes of the master's tables, and in every RUNS_PER_FULL_COPY-th run all tables."""
        await self._apply_progress()
        is_full = self._runs % RUNS_PER_FULL_COPY == 0
        self._runs += 1
        if is_full:
            self._unknown_topics.clear()
        if is_full or self._has_versions:
            await self._copy_all(is_full=is_full)

    async def _run_early(self) -> None:
        requested = 0
        while requested < len(self._unknown_topics):  # more may arrive during the requests
            requested = len(self._unknown_topics)
            await self._copy_all(is_full=True)

    async def _copy_all(self, *, is_full: bool) -> None:
        if self._registration.master_address:
            topics, groups = self._topics.data_version.token, self._groups.data_version.token
            offsets, locks = self._offsets_version, self._locks_version
            if is_full:
                topics = groups = offsets = locks = ""
            await self._copy(RequestCode.GET_ALL_TOPIC_CONFIG, self._copy_topics, topics)
            await self._copy(RequestCode.GET_ALL_CONSUMER_OFFSET, self._copy_offsets, offsets)
            for code in self._progress_codes:
                await self._copy(code, None, "")
            await self._copy(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self._copy_groups, groups)
            if self._has_versions:
                await self._copy(RequestCode.GET_ALL_QUEUE_LOCKS, self._copy_locks, locks)
            if self._has_versions and is_full:
                await self._copy(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, self._copy_modes, "")

    async def _copy(self, code: RequestCode, apply: Callable[[_Answer], None] | None, version: str) -> None:
        """Request a table and apply the response, unless it is empty or the master's version is `version`."""
        address = self._registration.master_address
        try:
            request = RemotingCommand.request(code, TableVersionHeader(table_version=version))
            response = await self._client.invoke_ok(address, request)
            if response.body:
                header = response.decode_header(TableCopyHeader)
                answer = _Answer(address, header, response.body, is_whole=not version)
                if apply is not None:
                    apply(answer)
                if answer.is_whole:
                    await self._offer_progress(code, answer)
        except (MQError, OSError) as error:
            # If the master is unreachable, all requests fail: one subject for them.
            self._outages.failed(COPY if is_unreachable(error) else f"{code.name} from the master", error)
        else:
            self._outages.succeeded(COPY)
            self._outages.succeeded(f"{code.name} from the master")

    def _copy_topics(self, answer: _Answer) -> None:
        self._has_versions = bool(answer.version)
        _replace(self._topics, "topics", answer)

    def _copy_groups(self, answer: _Answer) -> None:
        _replace(self._groups, "consumer groups", answer)

    def _copy_offsets(self, answer: _Answer) -> None:
        self._offsets.merge(parse_consumer_offsets("the master's response", fastjson.loads(answer.body)))
        self._offsets_version = answer.version

    def _copy_locks(self, answer: _Answer) -> None:
        self._locks.replace(decode_body(QueueLocks, answer.body), self._clock())
        self._locks_version = answer.version

    def _copy_modes(self, answer: _Answer) -> None:
        self._modes.replace(decode_body(MessageRequestModes, answer.body))

    async def _offer_progress(self, code: RequestCode, answer: _Answer) -> None:
        if code in self._progress_codes:
            log_begin, needed = await self._log_bounds(answer)
            self._pending_log_begin.offer(MasterProgress(log_begin, answer.address, needed))
        for delivery, pending in self._pending.items():
            if delivery.copied_with == code.name:
                progress = delivery.parse_copy(fastjson.loads(answer.body))
                if progress is not None and progress != self._applied.get(delivery):
                    _, needed = await self._log_bounds(answer)
                    pending.offer(MasterProgress(progress, answer.address, needed))

    async def _log_bounds(self, answer: _Answer) -> tuple[int, LogPosition]:
        """Begin and end of the master's log, read after the table of a response."""
        header = answer.header
        if header.log_begin is not None and header.log_end is not None:
            return header.log_begin, LogPosition(header.log_epoch or 0, header.log_end)
        response = await self._client.invoke_ok(
            answer.address, RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
        )
        table = decode_body(KVTable, response.body).table
        begin, end = (table.get(key, "") for key in ("commitLogMinOffset", "commitLogMaxOffset"))
        if not (begin.removeprefix("-").isdecimal() and end.isdecimal()):  # Apache's log without files begins at -1
            raise RemoteProtocolError(f"the master's log begins at {begin!r} and ends at {end!r}, which are no offsets")
        return int(begin), LogPosition(0, int(end))

    async def _apply_progress(self) -> None:
        address, own = self._registration.master_address, self._mastership.flushed_position
        if (log_begin := self._pending_log_begin.take(address, own)) is not None:
            self.log_begin = log_begin.table
        for delivery, pending in self._pending.items():
            if (covered := pending.take(address, own)) is None:
                continue
            subject = f"write of the progress of {delivery.name}"
            try:
                await delivery.persist(covered.table, covered.needed.end)
            except OSError as error:  # the next run requests it again
                self._outages.failed(subject, error)
            else:
                self._outages.succeeded(subject)
                self._applied[delivery] = covered.table


def _replace(table: SettingsTable[Any, Any], name: str, answer: _Answer) -> None:
    whole = decode_body(table.whole_type, answer.body)
    # Replacing the table writes a file, and registers topics: skip it while the master has changed nothing.
    if whole.data_version != table.data_version:
        table.replace(whole)
        logger.info("%s synchronized with the master, data version %s", name, whole.data_version)
