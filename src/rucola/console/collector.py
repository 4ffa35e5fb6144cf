"""The collector: one snapshot of the cluster for all pages.

Each round asks a name server for the brokers, and each broker for its runtime figures. Each master is asked for its
tables of topics and groups less often, and after a change. What takes a request for each topic or group is measured
only for the rows that a page shows, see `measurements`; in the time between, groups are measured in turn, so that a
list can be sorted by backlog.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from rucola.admin import TOOLS_GROUP, AdminClient, ResponseCode, SubscriptionGroupConfig, TopicConfig
from rucola.admin.brokers import shortest_rate
from rucola.admin.commands.archive_query import MessageArchive
from rucola.admin.requests import gather_to_completion, queue_of_item
from rucola.client import PullConsumer
from rucola.console.broker_state import ACCESS_REQUESTS, PENDING_REQUESTS, access, pending
from rucola.console.history import History
from rucola.console.measurements import WAIT_S, Measurements, RequestBudget
from rucola.domain.client import ClientConnection
from rucola.domain.queue import MessageQueue, TopicOffset
from rucola.domain.role import MASTER_ID, HaStatus
from rucola.domain.statistics import TOPIC_PUT_NUMS, OffsetWrapper, QueueTimeSpan
from rucola.domain.subscription import SubscriptionData
from rucola.errors import BrokerError, ConfigError, MQError
from rucola.message.topics import (
    DLQ_PREFIX,
    DUE_TIME_TOPICS,
    REPLY_TOPIC_POSTFIX,
    RETRY_PREFIX,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    dlq_topic,
    is_system_topic,
)
from rucola.presentation import size_text

logger = logging.getLogger(__name__)

T = TypeVar("T")

TABLES_INTERVAL_S: Final = 60.0
TURN_SHARE: Final = 4
"""The share of the budget for groups in turn: one request of this number."""
DISK_WARNING: Final = 0.85
LAG_WARNING: Final = 64 << 20
"""Bytes that a slave lacks of its master."""
MAX_ARCHIVED_TOPICS: Final = 100
"""Most topics of a broker for which the lag of an archive is measured; with more it is unknown."""
ARCHIVE_AGE: Final = "archive_age_s"
"""The series with the age of the lake's last commit."""
MAX_SENDER_QUEUES: Final = 8
TREND_LENGTH: Final = 12
"""Measurements of a group's backlog from which its end is estimated."""
KINDS: Final = "normal", "retry", "dead letters", "delayed", "half messages", "system"


def kind_of_topic(name: str, servers: Collection[str] = ()) -> str:
    """Return the one of KINDS that a topic is; `servers` are the names of clusters and brokers, which have topics."""
    if name.startswith(RETRY_PREFIX):
        return "retry"
    if name.startswith(DLQ_PREFIX):
        return "dead letters"
    if name in DUE_TIME_TOPICS:
        return "delayed"
    if name in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC):
        return "half messages"
    is_system = is_system_topic(name) or name.removesuffix(f"_{REPLY_TOPIC_POSTFIX}") in servers
    return "system" if is_system else "normal"


@dataclass(frozen=True, slots=True)
class BrokerState:
    cluster: str
    name: str
    broker_id: int
    address: str
    stats: Mapping[str, str] = field(default_factory=dict)
    ha: HaStatus | None = None
    """Role, epochs and replication; None for a broker of Apache's, and one that does not answer."""
    error: str = ""
    """Why its state is unknown; empty if it is known."""
    is_refusal: bool = False
    """Whether the error is the broker's answer, as without the right keys; else it does not answer."""

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER_ID

    @property
    def label(self) -> str:
        """The name, with the id of a slave."""
        return self.name if self.is_master else f"{self.name}:{self.broker_id}"

    @property
    def end(self) -> int | None:
        """The end of its log, a physical offset."""
        return int(self.stats["commitLogMaxOffset"]) if "commitLogMaxOffset" in self.stats else None

    @property
    def puts_per_s(self) -> float | None:
        return shortest_rate(self.stats["putTps"]) if "putTps" in self.stats else None

    @property
    def gets_per_s(self) -> float | None:
        return shortest_rate(self.stats["getTransferedTps"]) if "getTransferedTps" in self.stats else None

    @property
    def disk_ratio(self) -> float | None:
        return float(self.stats["commitLogDiskRatio"]) if "commitLogDiskRatio" in self.stats else None


@dataclass(frozen=True, slots=True)
class TopicState:
    name: str
    kind: str
    brokers: Mapping[str, TopicConfig]
    """By broker name."""

    @property
    def read_queues(self) -> int:
        return sum(one.read_queue_nums for one in self.brokers.values())

    @property
    def write_queues(self) -> int:
        return sum(one.write_queue_nums for one in self.brokers.values())


@dataclass(frozen=True, slots=True)
class GroupState:
    name: str
    brokers: Mapping[str, SubscriptionGroupConfig]


@dataclass(frozen=True, slots=True)
class Alarm:
    """`text` has the fields as `{name}`, and is translated."""

    subject: str
    text: str
    fields: Mapping[str, str] = field(default_factory=dict)


class ArchiveLag(NamedTuple):
    """What a lake does not have of one broker: bytes if it is archived from the store, else messages."""

    amount: int | None
    """None if it is unknown."""
    is_bytes: bool

    def series(self, name: str) -> str:
        """Return the series of the history, of a broker or store by its name in `ArchiveState.lags`."""
        return f"archive_lag_{'bytes' if self.is_bytes else 'messages'} {name}"


@dataclass(frozen=True, slots=True)
class ArchiveState:
    time_ms: int
    committed_ms: int | None = None
    """The last commit of the lake; None without any."""
    lags: Mapping[str, ArchiveLag] = field(default_factory=dict)
    """By broker name, or path of the store, of the topics that the lake has."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    time_ms: int = 0
    """0 before the first round has ended."""
    brokers: tuple[BrokerState, ...] = ()
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    groups: Mapping[str, GroupState] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    """Brokers whose topics and groups are unknown, or from an earlier round, with the reason."""
    error: str = ""
    """Why no name server answers; the rest is from an earlier round then."""

    @property
    def clusters(self) -> list[str]:
        return sorted({one.cluster for one in self.brokers})

    def reader(self, broker_name: str) -> BrokerState | None:
        """Return the master of a broker group, or a slave if it does not answer."""
        found = [one for one in self.brokers if one.name == broker_name]
        return next((one for one in found if not one.error), found[0] if found else None)

    @property
    def masters(self) -> list[BrokerState]:
        return [one for one in self.brokers if one.is_master]

    def replication_lag(self, slave: BrokerState) -> int | None:
        """Return the bytes of its master's log that a slave does not have, an estimate; None if it is unknown."""
        master = next((one for one in self.brokers if one.name == slave.name and one.is_master), None)
        if slave.is_master or slave.end is None or master is None or master.end is None:
            return None
        return max(0, master.end - slave.end)

    def alarms(self) -> list[Alarm]:
        found = [Alarm("name servers", "no name server answers: {why}", {"why": self.error})] if self.error else []
        for one in self.brokers:
            subject = f"{one.name} {one.address}"
            if one.is_refusal:
                found.append(
                    Alarm(subject, "the broker refuses the requests of the console: {why}", {"why": one.error})
                )
            elif one.error:
                found.append(Alarm(subject, "the broker does not answer: {why}", {"why": one.error}))
            if (one.disk_ratio or 0) >= DISK_WARNING:
                found.append(Alarm(subject, "the disk is {used} full", {"used": f"{one.disk_ratio:.0%}"}))
            if (lag := self.replication_lag(one) or 0) >= LAG_WARNING:
                found.append(Alarm(subject, "the slave lacks about {size} of its master", {"size": size_text(lag)}))
            if one.ha is not None and one.ha.fenced_by:
                epoch = {"epoch": str(one.ha.fenced_by)}
                found.append(Alarm(subject, "a newer master of epoch {epoch} has fenced it", epoch))
            elif one.ha is not None and not one.is_master and not one.ha.is_following:
                found.append(Alarm(subject, "the slave does not follow its master"))
            if one.ha is not None and one.is_master and one.ha.election is not None and one.ha.election.missing:
                ids = {"ids": ", ".join(map(str, one.ha.election.missing))}
                found.append(Alarm(subject, "members {ids} of the in-sync set are missing", ids))
        for name in sorted({one.name for one in self.brokers} - {one.name for one in self.brokers if one.is_master}):
            found.append(Alarm(name, "the broker group has no master: nothing can be sent to it"))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What the brokers of a topic or group answered."""

    failures: Mapping[str, str]
    """Why brokers are missing, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTraffic(Answers):
    puts_per_s: float
    day_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDetails(Answers):
    queues: Mapping[MessageQueue, TopicOffset]
    groups: Sequence[str]


class Sender(NamedTuple):
    """Where the newest message of a queue came from, and the producer that is connected from there."""

    queue: MessageQueue
    host: str
    store_ms: int
    group: str
    """Empty if no producer is connected from this address now."""
    client_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSenders(Answers):
    """The senders of the newest messages of at most MAX_SENDER_QUEUES queues; brokers do not know those of a topic."""

    senders: Sequence[Sender]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConnections(Answers):
    clients: Mapping[str, ClientConnection]
    subscriptions: Mapping[str, SubscriptionData]
    """By topic, as one of the brokers has them."""
    message_model: str
    consume_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDelays(Answers):
    delays_ms: Mapping[MessageQueue, int]
    """The age of the next message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProgress(Answers):
    queues: Mapping[MessageQueue, OffsetWrapper]
    consume_tps: float
    trend: Sequence[tuple[int, int]] = ()
    """The last measurements before: time in ms since 1970, and backlog."""

    def empty_at_ms(self, now_ms: int) -> int | None:
        """Return an estimate of the time at which the backlog is consumed; None if it does not shrink."""
        if not self.trend:
            return None
        before_ms, before = self.trend[0]
        rate = (before - self.backlog) / max(1, now_ms - before_ms)
        return now_ms + round(self.backlog / rate) if rate > 0 else None

    @property
    def backlog(self) -> int:
        return self.backlog_on(None)

    def backlog_on(self, topic: str | None) -> int:
        """Return the backlog on one topic, None for all."""
        return sum(
            max(0, at.broker_offset - at.consumer_offset)
            for queue, at in self.queues.items()
            if topic in (None, queue.topic)
        )

    def delay_ms(self, now_ms: int) -> int | None:
        """Return an upper limit of the age of the next message: that of the last one consumed. None if unknown."""
        times = [at.last_timestamp for at in self.queues.values() if at.broker_offset > at.consumer_offset]
        return 0 if not times else now_ms - min(times) if min(times) > 0 else None


class Collector:
    """Runs between `start` and `close`. `snapshot` is replaced, never changed."""

    def __init__(
        self, client: AdminClient, history: History, interval_s: float, requests_per_second: float,
        lake: MessageArchive | None = None,
    ) -> None:  # fmt: skip
        self.snapshot = Snapshot()
        self.archive: ArchiveState | None = None
        """None without a lake, and before it has been read."""
        self._lake = lake
        self._pending: dict[str, float] = {}
        """Of topics and groups, measured since the last round."""
        self._without_ha: set[str] = set()
        """Addresses of brokers that do not know their role as a request."""
        self._client = client
        self._history = history
        self._interval_s = interval_s
        self._turn_s = TURN_SHARE / requests_per_second
        self._budget = RequestBudget(requests_per_second)
        self._measurements: list[Measurements[Any]] = []

        def measured(measure: Callable[[str], Awaitable[T]], cost: Callable[[str], int]) -> Measurements[T]:
            one = Measurements(measure, cost, self._budget, interval_s)
            self._measurements.append(one)
            return one

        self.topic_traffic = measured(self._traffic, self._brokers_of_topic)
        self.topic_details = measured(self._topic_details, lambda name: 2 * self._brokers_of_topic(name))
        self.topic_senders = measured(self._senders, lambda _: MAX_SENDER_QUEUES)
        self.group_progress = measured(self._progress, self._brokers_of_group)
        self.group_connections = measured(self._connections, self._brokers_of_group)
        self.group_delays = measured(
            self._delays, lambda name: self._brokers_of_group(name) * len(self._topics_of(name))
        )
        self.dead_letters = measured(
            client.dead_letters.stats, lambda name: 4 * self._brokers_of_topic(dlq_topic(name))
        )
        self.diagnoses = measured(client.diagnosis.check, lambda name: 5 * self._brokers_of_group(name))
        # By the address of a broker.
        self.producers = measured(client.groups.producers, lambda _: 1)
        self.settings = measured(client.brokers.config, lambda _: 1)
        self.access = measured(partial(access, client), lambda _: ACCESS_REQUESTS)
        self.pending = measured(partial(pending, client), lambda _: PENDING_REQUESTS)
        self._tables_s = -TABLES_INTERVAL_S
        self._looked_s = -TABLES_INTERVAL_S
        self._rounds = asyncio.Lock()
        self._first = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._tasks = [
            asyncio.create_task(work)
            for work in (
                self._run(),
                self._measure_in_turn(self.group_progress, self._brokers_of_group, lambda: list(self.snapshot.groups)),
                self._measure_in_turn(self.topic_traffic, self._brokers_of_topic, self._normal_topics),
                self._measure_archive_in_turn(),
            )
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in self._measurements:
            await one.close()

    async def spend(self, count: int) -> None:
        """Wait until the budget has `count` requests for another part."""
        await asyncio.sleep(self._budget.reserve(count))

    def forget_brokers(self) -> None:
        """Measure settings, users and policies again when they are shown next: after a change."""
        for one in self.snapshot.brokers:
            self.settings.forget(one.address)
            self.access.forget(one.address)

    def forget_group(self, name: str) -> None:
        """Measure a group again when it is shown next: after a change."""
        for one in (self.group_progress, self.group_connections, self.group_delays, self.dead_letters, self.diagnoses):
            one.forget(name)

    async def wait_first(self, wait_s: float = 2.0) -> Snapshot:
        """Return the snapshot, after the first round or `wait_s`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._first.wait(), wait_s)
        return self.snapshot

    async def refresh(self) -> None:
        """Read everything again, after a change."""
        self._tables_s = -TABLES_INTERVAL_S
        await self._round()

    async def topic(self, name: str) -> TopicState | None:
        """Return a topic, even one that is newer than the tables."""
        await self._look_again(name in self.snapshot.topics)
        return self.snapshot.topics.get(name)

    async def group(self, name: str) -> GroupState | None:
        """Return a group, even one that is newer than the tables."""
        await self._look_again(name in self.snapshot.groups)
        return self.snapshot.groups.get(name)

    async def _look_again(self, is_known: bool) -> None:
        if not is_known and time.monotonic() - max(self._tables_s, self._looked_s) >= self._interval_s:
            self._looked_s = time.monotonic()
            await self.refresh()

    async def _run(self) -> None:
        while True:
            begin_s = time.monotonic()
            try:
                await self._round()
                self._first.set()
            except Exception:
                logger.exception("the console could not read the cluster")
            await asyncio.sleep(max(0.0, begin_s + self._interval_s - time.monotonic()))

    async def _round(self) -> None:
        async with self._rounds:  # the snapshot of one that begins earlier must not replace that of a later one
            await self._read()

    async def _read(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        before = self.snapshot
        try:
            info = await self._client.cluster.info()
        except MQError as error:
            self.snapshot = replace(before, error=str(error))
            return
        known = [
            BrokerState(data.cluster, data.broker_name, broker_id, address)
            for data in sorted(info.broker_addr_table.values(), key=lambda data: (data.cluster, data.broker_name))
            for broker_id, address in sorted(data.broker_addrs.items())
        ]
        self._client.restrict([one.address for one in known])
        brokers = tuple(await gather_to_completion(self._state(one) for one in known))
        after = replace(before, time_ms=now_ms, brokers=brokers, error="")
        if time.monotonic() - self._tables_s >= TABLES_INTERVAL_S:
            self._tables_s = time.monotonic()
            after = await self._tables(after, before)
        self.snapshot = after
        measured, self._pending = self._pending, {}
        await self._history.add(now_ms // 1000, _samples(after) | measured)

    async def _state(self, one: BrokerState) -> BrokerState:
        try:
            stats = await self._client.brokers.runtime_stats(one.address)
        except MQError as error:
            return replace(one, error=str(error), is_refusal=isinstance(error, BrokerError))
        return replace(one, stats=stats, ha=await self._ha(one.address))

    async def _ha(self, address: str) -> HaStatus | None:
        if address in self._without_ha:
            return None
        try:
            return await self._client.roles.status(address)
        except BrokerError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self._without_ha.add(address)
        except MQError:
            pass  # the next round asks again
        return None

    async def _tables(self, after: Snapshot, before: Snapshot) -> Snapshot:
        """Add topics and groups of all broker groups; where no master answers, those known before."""
        topics: dict[str, dict[str, TopicConfig]] = {}
        groups: dict[str, dict[str, SubscriptionGroupConfig]] = {}
        unread: dict[str, str] = {}
        masters = {one.name: one for one in after.masters}
        for broker in dict.fromkeys(one.name for one in after.brokers):
            master = masters.get(broker)
            try:
                if master is None or master.error:
                    raise MQError(master.error if master is not None else "no master is registered")
                configs = await self._client.topics.configs(master.address)
                subscriptions = await self._client.groups.configs(master.address)
            except MQError as error:
                unread[broker] = str(error)
                configs = {name: of.brokers[broker] for name, of in before.topics.items() if broker in of.brokers}
                subscriptions = {name: of.brokers[broker] for name, of in before.groups.items() if broker in of.brokers}
            for name, config in configs.items():
                topics.setdefault(name, {})[broker] = config
            for name, subscription in subscriptions.items():
                groups.setdefault(name, {})[broker] = subscription
        servers = {name for one in after.brokers for name in (one.cluster, one.name)}
        return replace(
            after,
            topics={name: TopicState(name, kind_of_topic(name, servers), of) for name, of in sorted(topics.items())},
            groups={name: GroupState(name, of) for name, of in sorted(groups.items())},
            unread=unread,
        )

    async def _measure_archive_in_turn(self) -> None:
        """Compare the lake with the logs, as often as the tables are read."""
        await self._first.wait()
        known: dict[str, float] = {}
        while (lake := self._lake) is not None:
            now_ms = time.time_ns() // 1_000_000
            try:
                status = await asyncio.to_thread(lake.status)
                progress = await asyncio.to_thread(lake.progress)
                lags = {name: await self._archive_lag(name, archived) for name, archived in progress.items()}
                self.archive = ArchiveState(now_ms, status.committed_ms, lags)
                # One that is unknown now is repeated: without it the sum of all would fall.
                known |= {one.series(name): one.amount for name, one in lags.items() if one.amount is not None}
                known = {series: known[series] for name, one in lags.items() if (series := one.series(name)) in known}
                self._pending |= known
                if status.committed_ms is not None:
                    self._pending[ARCHIVE_AGE] = (now_ms - status.committed_ms) / 1000
            except (MQError, OSError) as error:
                # With the names of its series, of which the charts go on.
                self.archive = replace(self.archive or ArchiveState(now_ms), time_ms=now_ms, error=str(error))
            await asyncio.sleep(TABLES_INTERVAL_S)

    async def _archive_lag(self, broker: str, archived: Any) -> ArchiveLag:
        """What a lake does not have of a broker, or of a store by its path; `archived` is its ArchiveProgress."""
        masters = self.snapshot.masters
        if not archived.is_live:
            ratio = f"commitLogDiskRatio_{broker}/commitlog"
            end = next((one.end for one in masters if ratio in one.stats), None)
            return ArchiveLag(None if end is None else max(0, end - archived.physical_offset), is_bytes=True)
        master = next((one for one in masters if one.name == broker), None)
        if master is None or len(archived.queues) > MAX_ARCHIVED_TOPICS:
            return ArchiveLag(None, is_bytes=False)
        measured = await self.topic_details.get(archived.queues, TABLES_INTERVAL_S)
        count = 0
        for topic, queues in archived.queues.items():
            details = measured.get(topic)
            if details is None or details.value is None or broker in details.value.failures:
                return ArchiveLag(None, is_bytes=False)
            for queue, at in details.value.queues.items():
                if queue.broker_name == broker:
                    count += at.max_offset - max(at.min_offset, queues.get(str(queue.queue_id), 0))
        return ArchiveLag(max(0, count), is_bytes=False)

    # Single brokers, topics and groups.

    async def of_brokers(
        self, measurements: Measurements[T], brokers: Sequence[BrokerState]
    ) -> tuple[dict[str, T], dict[str, str]]:
        """Return what brokers answered by address, and by name why others are missing: "" for not measured yet."""
        measured = await measurements.get([one.address for one in brokers], WAIT_S)
        found, missing = dict[str, T](), dict[str, str]()
        for one in brokers:
            answer = measured.get(one.address)
            if answer is not None and answer.value is not None:
                found[one.address] = answer.value
            else:
                missing[one.label] = answer.error if answer else ""
        return found, missing

    def _brokers_of_topic(self, name: str) -> int:
        found = self.snapshot.topics.get(name)
        return len(found.brokers) if found else 1

    def _brokers_of_group(self, name: str) -> int:
        found = self.snapshot.groups.get(name)
        return len(found.brokers) if found else 1

    def _topics_of(self, group: str) -> list[str]:
        """The topics on which a group had offsets when it was measured last."""
        known = self.group_progress.known(group)
        return sorted({queue.topic for queue in known.value.queues}) if known and known.value else []

    async def _ask(
        self, found: TopicState | GroupState | None, ask: Callable[[str], Awaitable[T]]
    ) -> tuple[list[T], dict[str, str]]:
        """What each broker answers, and why others do not. Raises MQError if none does."""
        if found is None:
            raise ConfigError("no broker is known to have it")
        failures: dict[str, str] = {}

        async def answer(broker: str) -> list[T]:
            reader = self.snapshot.reader(broker)
            try:
                if reader is None:
                    raise ConfigError(f"no broker {broker} is registered", subject=broker)
                return [await ask(reader.address)]
            except MQError as error:
                failures[broker] = str(error)
                return []

        answers = await gather_to_completion(answer(broker) for broker in found.brokers)
        found_answers = [one for of_broker in answers for one in of_broker]
        if failures and not found_answers:
            raise MQError("; ".join(f"{broker}: {why}" for broker, why in sorted(failures.items())))
        return found_answers, failures

    async def _traffic(self, name: str) -> TopicTraffic:
        rates, failures = await self._ask(
            self.snapshot.topics.get(name), lambda address: self._client.brokers.rate(address, TOPIC_PUT_NUMS, name)
        )
        puts_per_s = sum(tps for tps, _ in rates)
        if not failures:
            self._pending[f"topic puts_per_s {name}"] = puts_per_s
        return TopicTraffic(puts_per_s=puts_per_s, day_count=sum(count for _, count in rates), failures=failures)

    async def _topic_details(self, name: str) -> TopicDetails:
        async def ask(address: str) -> tuple[dict[MessageQueue, TopicOffset], list[str]]:
            topics = self._client.topics
            return await topics.stats_at(address, name), await topics.consumer_groups_at(address, name)

        answers, failures = await self._ask(self.snapshot.topics.get(name), ask)
        queues = {queue: at for of_broker, _ in answers for queue, at in of_broker.items()}
        groups = sorted({group for _, of_broker in answers for group in of_broker})
        return TopicDetails(queues=dict(sorted(queues.items(), key=queue_of_item)), groups=groups, failures=failures)

    async def _progress(self, name: str) -> GroupProgress:
        answers, failures = await self._ask(
            self.snapshot.groups.get(name), lambda address: self._client.groups.consume_stats_at(address, name)
        )
        queues = {queue: at for stats in answers for queue, at in stats.offset_table.items()}
        known = self.group_progress.known(name)
        trend: Sequence[tuple[int, int]] = ()
        # A sum of other brokers is no measurement of the same backlog.
        if known is not None and known.value is not None and known.value.failures.keys() == failures.keys():
            trend = [*known.value.trend, (known.time_ms, known.value.backlog)][-TREND_LENGTH:]
        found = GroupProgress(
            queues=dict(sorted(queues.items(), key=queue_of_item)),
            consume_tps=sum(stats.consume_tps for stats in answers), trend=trend, failures=failures,
        )  # fmt: skip
        if not failures:
            delay_ms = found.delay_ms(time.time_ns() // 1_000_000)
            self._pending |= {f"group backlog {name}": found.backlog, f"group consumed_per_s {name}": found.consume_tps}
            self._pending |= {} if delay_ms is None else {f"group delay_s {name}": delay_ms / 1000}
        return found

    async def _connections(self, name: str) -> GroupConnections:
        groups = self._client.groups
        answers, failures = await self._ask(
            self.snapshot.groups.get(name), lambda address: groups.find_consumer_connection(name, address)
        )
        found = [one for one in answers if one is not None]
        return GroupConnections(
            clients={client.client_id: client for one in found for client in one.connection_set},
            subscriptions={topic: data for one in found for topic, data in one.subscription_table.items()},
            message_model=found[0].message_model if found else "",
            consume_type=found[0].consume_type if found else "",
            failures=failures,
        )

    async def _delays(self, name: str) -> GroupDelays:
        topics = self._topics_of(name)

        async def ask(address: str) -> list[QueueTimeSpan]:
            spans = self._client.groups.consume_time_spans_at
            return [span for topic in topics for span in await spans(address, topic, name)]

        answers, failures = await self._ask(self.snapshot.groups.get(name), ask)
        delays = {span.message_queue: max(0, span.delay_time) for spans in answers for span in spans}
        return GroupDelays(delays_ms=delays, failures=failures)

    async def _senders(self, name: str) -> TopicSenders:
        details = await self.topic_details.get_one(name)
        if details is None or details.value is None:
            raise MQError(details.error if details else "the queues have not been measured yet")
        newest = sorted(details.value.queues.items(), key=lambda item: -item[1].last_update_timestamp)
        wanted = [(queue, at) for queue, at in newest if at.max_offset > at.min_offset][:MAX_SENDER_QUEUES]
        producers = await self.producers.get(
            reader.address for broker in {queue.broker_name for queue, _ in wanted}
            if (reader := self.snapshot.reader(broker)) is not None
        )  # fmt: skip
        known = {
            one.remote_ip.lstrip("/"): (group, one.client_id)
            for found in producers.values() if found.value is not None
            for group, infos in found.value.items()
            for one in infos
        }  # fmt: skip
        failures = {address: found.error for address, found in producers.items() if found.error}

        senders = []
        async with PullConsumer(TOOLS_GROUP, self._client.connection) as consumer:
            await consumer.queues(name)
            for queue, at in wanted:
                try:
                    pulled = await consumer.pull(queue, at.max_offset - 1, 1)
                except MQError as error:
                    failures[str(queue)] = str(error)
                    continue
                for message in pulled.messages:
                    connected = known.get(message.born_host, ("", ""))
                    senders.append(Sender(queue, message.born_host, message.store_timestamp, *connected))
        return TopicSenders(senders=senders, failures=failures)

    def _normal_topics(self) -> list[str]:
        return [name for name, one in self.snapshot.topics.items() if one.kind == "normal"]

    async def _measure_in_turn(
        self, measurements: Measurements[Any], cost: Callable[[str], int], names: Callable[[], list[str]]
    ) -> None:
        await self._first.wait()
        while True:
            begin_s = time.monotonic()
            for name in names():
                await measurements.get([name], self._interval_s)
                await asyncio.sleep(cost(name) * self._turn_s)
            await asyncio.sleep(max(0.0, begin_s + self._interval_s - time.monotonic()))


def _samples(snapshot: Snapshot) -> dict[str, float]:
    """The values of the history, by name: `puts_per_s broker-a`, `replication_lag broker-a:1`."""
    found: dict[str, float | None] = {}
    for one in snapshot.brokers:
        found[f"disk_ratio {one.label}"] = one.disk_ratio
        found[f"gets_per_s {one.label}"] = one.gets_per_s
        if one.is_master:
            found[f"puts_per_s {one.label}"] = one.puts_per_s
        else:
            found[f"replication_lag {one.label}"] = snapshot.replication_lag(one)
    return {name: value for name, value in found.items() if value is not None}
