"""Broker: puts the parts together, starts and stops them in the right order.

Start: open the store, read the tables, listen, register. Stop: leave the name servers, answer the held pulls, stop
listening, finish the work that clients were told is done, flush, write the tables, close the store. A broker that
cannot start leaves nothing behind.

Answers to `BrokerController` of Apache RocketMQ 4.9.8; the parts get what they need and do not know this class.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType

from rucola.access import Interceptor
from rucola.broker.background.group_commit import Flush
from rucola.broker.background.registration import Registration
from rucola.broker.background.retention import AskDisk, Cleaning, disk_usage
from rucola.broker.background.scheduler import Alarm, Clockwork, Reput, in_thread
from rucola.broker.client_registry import ClientRegistry
from rucola.broker.config import BrokerConfig, MetricsExporterType
from rucola.broker.delivery.delay import PERSIST_INTERVAL_MS, DelayedDelivery
from rucola.broker.delivery.internal_puts import InternalPuts
from rucola.broker.delivery.timer import TimedDelivery
from rucola.broker.delivery.transaction_check import TransactionCheck
from rucola.broker.delivery.transactions import Transactions
from rucola.broker.durability import Durability
from rucola.broker.flow_control import TICK_MS, FlowControl
from rucola.broker.interceptors import Permission, SlaveRefusal, broker_interceptors
from rucola.broker.pull_request_hold import PullRequestHold
from rucola.broker.queue_locks import QueueLocks
from rucola.broker.remoting.client_calls import RemotingClientCalls
from rucola.broker.remoting.endpoints import broker_endpoints
from rucola.broker.replication.master import Master
from rucola.broker.replication.slave import Slave
from rucola.broker.replication.table_sync import INTERVAL_MS as SYNCHRONIZE_INTERVAL_MS
from rucola.broker.replication.table_sync import SlaveSynchronize
from rucola.broker.services.broker_services import build_services
from rucola.broker.state import BrokerState
from rucola.broker.stats import BrokerStats
from rucola.broker.tables.consumer_filters import ConsumerFilterTable
from rucola.broker.tables.groups import SubscriptionGroupTable
from rucola.broker.tables.offsets import ConsumerOffsetTable
from rucola.broker.tables.persistence import TableWriting
from rucola.broker.tables.topics import TopicConfigTable
from rucola.errors import ConfigError
from rucola.message.delay import parse_delay_levels
from rucola.message.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from rucola.rates import SAMPLE_INTERVAL_MS
from rucola.remoting.client import RemotingClient
from rucola.remoting.connection import Processor
from rucola.remoting.endpoints import processor_table
from rucola.remoting.server import RemotingServer
from rucola.store.config import StoreConfig
from rucola.store.dispatch import Arrived
from rucola.store.message_store import MessageStore

DESCRIPTORS_AT_ONCE = 1 << 16
"""As many files as a process can map where vm.max_map_count is as it comes; their table takes half a megabyte."""


def wall_clock_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Broker:
    """One broker over one store directory. Use `start` and `stop`, or `async with`.

    With `listen_port` 0 the system chooses a port; `address` tells it after the start. Settings that operators change
    while it runs are written into `config_file`. Each of `interceptors` sees every request before the broker's own
    checks do (see `rucola.access`).
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        *,
        clock: Callable[[], int] = wall_clock_ms,
        ask_disk: AskDisk = disk_usage,
        config_file: Path | None = None,
        interceptors: Iterable[Interceptor] = (),
    ) -> None:
        self.config = config
        self.store_config = store_config
        self._clock = clock
        self._ask_disk = ask_disk
        self._config_file = config_file
        self._interceptors = tuple(interceptors)
        self._running = AsyncExitStack()

    @property
    def address(self) -> str:
        """Where clients reach this broker, "ip:port"."""
        return f"{self.config.broker_ip1}:{self.config.listen_port}"

    async def start(self) -> None:
        """Open the store and begin to serve. StoreError, ConfigError or RemotingError say why that cannot be."""
        async with AsyncExitStack() as starting:
            await self._start(starting)
            self._running = starting.pop_all()

    async def stop(self) -> None:
        """Stop serving and leave the store clean. Everything that was acknowledged is on disk afterwards."""
        await self._running.aclose()

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _start(self, running: AsyncExitStack) -> None:
        """Start part after part, noting for each how it ends; they end in the opposite order."""
        _take_all_descriptors()
        config, clock = self.config, self._clock
        processors: dict[int, Processor] = {}
        calls = RemotingClientCalls()
        clients = ClientRegistry(
            should_notify=lambda group: config.notify_consumer_ids_changed_enable and groups.notifies(group),
            notify=calls.notify_consumer_ids_changed,
            on_group_left=lambda group: filters.leave(group, clock()),
        )
        locks = QueueLocks()
        hold = PullRequestHold()
        stats = BrokerStats(clock(), config.broker_cluster_name)
        server = RemotingServer(config.bind_address, config.listen_port, processors, on_close=clients.closed)
        server.bind()
        running.push_async_callback(server.stop)
        config.listen_port = server.port
        self.store_config.store_host = config.store_host
        is_slave = self.store_config.is_slave

        def arrived(topics: Mapping[str, Arrived]) -> None:
            stats.put(topics)
            for topic, (queues, tags_codes, _) in topics.items():
                if hold.held:
                    for queue in queues:
                        hold.arrived(topic, queue.queue_id, queue.max_offset)
                if is_slave:
                    synchronize.arrived(topic)
                elif topic == TIMER_TOPIC:
                    timed.arrived(queues[0].max_offset, tags_codes)
                    timer_alarm.ring_at(min(tags_codes))
                elif topic == SCHEDULE_TOPIC:
                    delay_alarm.ring_at(min(tags_codes))

        store = MessageStore(self.store_config, arrived, lambda: reput.on_pending())
        await asyncio.to_thread(store.open, clock())
        running.push_async_callback(asyncio.to_thread, store.close)
        flush = Flush(store)
        running.push_async_callback(flush.stop)

        client = RemotingClient()
        running.push_async_callback(client.close)
        directory = Path(self.store_config.store_path_root_dir) / "config"
        writing = TableWriting()

        def topics_changed() -> None:
            writing.changed(topics.persisting)
            registration.changed()

        def groups_changed() -> None:
            writing.changed(groups.persisting)

        topics = TopicConfigTable(directory / "topics.json", config, topics_changed)
        groups = SubscriptionGroupTable(directory / "subscriptionGroup.json", config, groups_changed)
        offsets = ConsumerOffsetTable(directory / "consumerOffset.json")
        filters = ConsumerFilterTable(directory / "consumerFilter.json", config)
        registration = Registration(config, topics, client)
        synchronize = SlaveSynchronize(registration, client, topics, groups, offsets, directory / "delayOffset.json")
        topics.load(clock())
        groups.load()
        offsets.load(None if is_slave else store.max_offset)
        filters.load(clock())

        async def persist_offsets() -> None:
            await in_thread(offsets.persisting())

        async def persist_filters() -> None:
            await in_thread(filters.persisting(clock()))

        running.push_async_callback(persist_filters)
        running.push_async_callback(persist_offsets)
        running.push_async_callback(writing.stop, topics.persisting, groups.persisting)

        master = None if is_slave else Master(config, store)
        durability = Durability(store, flush, master)
        reput = Reput(store, hold, master.on_put if master is not None else _nobody_waits)
        running.callback(reput.stop)
        delays_ms = parse_delay_levels(self.store_config.message_delay_level)
        puts = InternalPuts(store, lambda due_ms: kept_alarm.ring_at(due_ms))
        kept_alarm = Alarm("puts that were kept", lambda: puts.put_kept(clock()), clock)
        running.callback(lambda: puts.close(clock()))
        running.callback(kept_alarm.stop)

        delayed = DelayedDelivery(store, puts, delays_ms, directory / "delayOffset.json")
        delayed.load()
        delay_alarm = Alarm("delayed delivery", lambda: delayed.deliver(clock()), clock)

        timed = TimedDelivery(store, puts, directory / "timer.json")
        timed.load()
        timer_alarm = Alarm("timed delivery", lambda: timed.deliver(clock()), clock)

        async def persist_deliveries() -> bool:
            offsets, progress = delayed.offsets(), timed.progress()
            flushed = await flush.until(store.max_physical_offset, self.store_config.sync_flush_timeout)
            if not flushed or store.failure is not None:
                return False
            await in_thread(delayed.persist, offsets)
            await in_thread(timed.persist, progress)
            return True

        async def make_ready_for_cleaning() -> bool:
            if is_slave:
                return True
            before = timed.rolled_offset
            return await timed.roll(clock) and (timed.rolled_offset == before or await persist_deliveries())

        cleaning = Cleaning(self.store_config, store, clock, self._ask_disk, make_ready_for_cleaning)
        await cleaning.look()
        if not is_slave:
            running.push_async_callback(persist_deliveries)
        running.callback(delay_alarm.stop)
        running.callback(timer_alarm.stop)

        transactions = Transactions(
            store,
            puts,
            topics,
            offsets,
            config.store_host,
            len(delays_ms),
            timeout_ms=config.transaction_time_out,
            check_max=config.transaction_check_max,
        )
        transaction_check = TransactionCheck(transactions, store, offsets, clients, calls, flush, clock)
        if not is_slave:
            transactions.load()
            running.push_async_callback(transaction_check.note_progress)

        state = BrokerState(
            config, store, puts, topics, groups, offsets, filters, writing, clients, locks, delayed, transactions,
            stats, clock,
        )  # fmt: skip
        flow_control = FlowControl(config, lambda: time.monotonic_ns() // 1_000_000)
        permission = Permission(config, topics, groups)
        slave_refusal = SlaveRefusal(lambda: registration.master_address) if is_slave else None
        services = build_services(
            state, durability, calls, permission.check_publish, registration.settled, self._config_file
        )
        endpoints = broker_endpoints(services, state, calls, hold, permission.check_fetch)
        chain = broker_interceptors(self._interceptors, slave_refusal, flow_control, permission)
        processors |= processor_table(endpoints, chain)

        clockwork = Clockwork()
        running.push_async_callback(clockwork.stop)
        clockwork.every(100, "answer held pulls", lambda: hold.expire(clock()))
        clockwork.every(self.store_config.flush_interval_commit_log, "flush", flush.start)
        clockwork.every(TICK_MS, "watch for congestion", flow_control.tick)
        clockwork.every(100, "touch pages ahead", lambda: flow_control.touch(store.warm))
        clockwork.every(1000, "checkpoint", flush.checkpoint)
        clockwork.every(config.flush_consumer_offset_interval, "persist consumer offsets", persist_offsets)
        clockwork.every(10_000, "persist consumer filters", persist_filters)
        clockwork.every(SAMPLE_INTERVAL_MS, "sample statistics", lambda: stats.sample(clock()))
        clockwork.every(10_000, "expire clients", lambda: clients.expire(clock()))
        if config.server_channel_max_idle_time_seconds > 0:
            idle_ms = config.server_channel_max_idle_time_seconds * 1000
            clockwork.every(min(10_000, idle_ms // 2), "close idle connections", lambda: server.close_idle(idle_ms))
        clockwork.every(self.store_config.clean_resource_interval, "clean", cleaning.run)
        clockwork.every(10_000, "expire locks", lambda: locks.expire(clock()))
        clockwork.every(config.register_name_server_period, "register", registration.register)
        if master is not None:
            clockwork.every(60_000, "tell of slaves", master.tell)
            clockwork.every(PERSIST_INTERVAL_MS, "persist deliveries", persist_deliveries)
            clockwork.every(config.transaction_check_interval, "check transactions", transaction_check.run)
            delay_alarm.ring_at(clock())
            timer_alarm.ring_at(clock())

        if config.metrics_exporter_type is MetricsExporterType.PROM:
            try:
                from rucola.broker.metrics import BrokerCollector, MetricsServer  # here, since their client is an extra
            except ModuleNotFoundError as error:
                raise ConfigError(f"metricsExporterType=PROM: {error}; `pip install 'rucola[metrics]'`") from None
            root = self.store_config.store_path_root_dir
            behind = dict[str, int] if master is None else master.behind
            collector = BrokerCollector(
                config, store, puts, topics, offsets, clients, stats, services.runtime_info.figures, behind, clock, root
            )
            metrics = MetricsServer(
                config.metrics_prom_exporter_host or config.bind_address, config.metrics_prom_exporter_port, collector
            )
            await metrics.start()
            running.push_async_callback(metrics.stop)
            config.metrics_prom_exporter_port = metrics.port

        if master is not None:
            master.start()
            running.push_async_callback(master.stop)
        await server.start()
        running.push_async_callback(server.stop)
        running.callback(hold.release_all)
        await registration.register()
        running.push_async_callback(registration.unregister)
        if is_slave:
            running.push_async_callback(synchronize.stop)
            await synchronize.run()
            clockwork.every(SYNCHRONIZE_INTERVAL_MS, "synchronize with the master", synchronize.run)
            slave = Slave(config, store, flush, registration)
            slave.start()
            running.push_async_callback(slave.stop)


def _nobody_waits() -> None:
    """A slave sends its log to nobody."""


def _take_all_descriptors() -> None:
    """Let this process open as many files as the system allows: a store has several for every queue.

    The kernel keeps them in a table that it doubles when it is full, and the thread that opens one file too many waits
    for all processors meanwhile, 10 ms and more. Opening one far behind all others makes the table large at once.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = DESCRIPTORS_AT_ONCE if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_AT_ONCE)
    descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.close(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, most - 1))
    finally:
        os.close(descriptor)
