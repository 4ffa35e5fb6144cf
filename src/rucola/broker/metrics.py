"""Prometheus metrics of a broker, under the names and labels of Apache's rocketmq-exporter.

GET /metrics collects all values at that moment. All metrics except the failures, the refusals and the switches are
gauges. A topic or group without messages has the value 0.

    rocketmq_broker_tps, _qps                        cluster brokerIP broker         messages put and read per second
    rocketmq_producer_tps, _message_size             cluster broker topic            messages and bytes put per second
    rocketmq_producer_offset                         cluster broker topic            messages stored since its creation
    rocketmq_topic_retry_offset                      cluster broker topic            the same of %RETRY% topics
    rocketmq_topic_dlq_offset                        cluster broker group            the same of %DLQ% topics
    rocketmq_producer_count                          cluster broker group            clients of a producer group
    rocketmq_consumer_tps, _message_size             cluster broker topic group      messages and bytes read per second
    rocketmq_consumer_offset                         cluster broker topic group      sum of the consumer offsets
    rocketmq_send_back_nums                          cluster broker topic group      sent back in the last minute
    rocketmq_group_get_latency_by_storetime          cluster broker topic group      age in ms of the next message
    rocketmq_group_diff, _retrydiff, _dlqdiff        group topic countOfOnlineConsumers msgModel     backlog
    rocketmq_group_count                             caddr localaddr group           clients of a consumer group
    rocketmq_slave_behind_bytes, _seconds            cluster broker slave            replication lag
    rocketmq_broker_epoch                            cluster broker role             last epoch of the log
    rocketmq_broker_is_accepting                     cluster broker                  1 if it accepts messages, else 0
    rocketmq_broker_last_switch_timestamp_seconds    cluster broker                  last switch of the role, 0 if none
    rocketmq_broker_switches_total                   cluster broker reason           switches since the start
    rocketmq_internal_put_failures_total             cluster broker put              failed attempts since the start
    rocketmq_connections_closed_total                cluster broker limit            closed or not accepted, by limit
    rocketmq_unsent_bytes, _partial_frame_bytes      cluster broker                  memory of slow peers, in bytes
    rocketmq_held_pulls                              cluster broker                  pulls that wait for a message
    rocketmq_consumequeue_mappings_ratio             cluster broker limit            used part of the mappings, 0 to 1
    rocketmq_limit_refusals_total                    cluster broker limit            refusals by limit since the start
    rocketmq_brokeruntime_...                        cluster brokerIP brokerHost des boottime broker_version

The rows from the replication lag on, except the last, are additions to the exporter's metrics. The last represents the
figures of GET_BROKER_RUNTIME_INFO, sizes in bytes. Rates are of the last minute. rocketmq_group_count has the addresses
and ids of the clients in its labels, as the exporter does.

`metricsExporterType=PROM` enables the endpoint at `metricsPromExporterHost` and `metricsPromExporterPort`. RocketMQ 5
has these keys, but other names of metrics. Figures that only Apache's broker has (thread pools, latencies) are absent.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from rucola.broker.assembly.access import AccessFigures
from rucola.broker.pull_request_hold import PullRequestHold
from rucola.broker.role import SwitchReason
from rucola.broker.services.roles import RoleService
from rucola.broker.state import BrokerState
from rucola.domain.statistics import (
    BROKER_GET_NUMS,
    BROKER_PUT_NUMS,
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    SNDBCK_PUT_NUMS,
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
    group_key,
)
from rucola.message.topics import DLQ_PREFIX, RETRY_PREFIX
from rucola.remoting.connection_memory import ConnectionMemory

_RUNTIME = {
    "msgPutTotalTodayNow": "msg_put_total_today_now",
    "msgGetTotalTodayNow": "msg_gettotal_today_now",
    "msgPutTotalTodayMorning": "msg_puttotal_todaymorning",
    "msgGetTotalTodayMorning": "msg_gettotal_todaymorning",
    "msgPutTotalYesterdayMorning": "msg_puttotal_yesterdaymorning",
    "msgGetTotalYesterdayMorning": "msg_gettotal_yesterdaymorning",
    "dispatchBehindBytes": "dispatch_behind_bytes",
    "putMessageSizeTotal": "put_message_size_total",
    "putMessageAverageSize": "put_message_average_size",
    "putMessageTimesTotal": "putmessage_times_total",
    "earliestMessageTimeStamp": "earliest_message_timestamp",
    "commitLogDiskRatio": "commitlog_disk_ratio",
    "consumeQueueDiskRatio": "consumequeue_disk_ratio",
    "commitLogMinOffset": "commitlog_minoffset",
    "commitLogMaxOffset": "commitlog_maxoffset",
}
"""Figures with one value: key in GET_BROKER_RUNTIME_INFO, and metric name after `rocketmq_brokeruntime_`."""

_RUNTIME_RATES = {
    "putTps": "put_tps",
    "getFoundTps": "getfound_tps",
    "getMissTps": "getmiss_tps",
    "getTotalTps": "gettotal_tps",
    "getTransferedTps": "gettransfered_tps",
}
"""Figures with three rates: key, and metric name, to which the seconds of the window are appended."""

_QUEUES_PER_STEP = 16

_WINDOWS_S = ("10", "60", "600")

_TOPIC_LABELS = ("cluster", "broker", "topic")
_GROUP_LABELS = ("cluster", "broker", "topic", "group")
_BACKLOG_LABELS = ("group", "topic", "countOfOnlineConsumers", "msgModel")


class BrokerCollector:
    """Collects the metrics of one broker. `figures` returns GET_BROKER_RUNTIME_INFO's; `directory` is the store's."""

    def __init__(
        self,
        state: BrokerState,
        figures: Callable[[], dict[str, str]],
        roles: RoleService,
        directory: str | Path,
        memory: ConnectionMemory,
        hold: PullRequestHold,
        access_figures: Callable[[], AccessFigures],
    ) -> None:
        self._memory = memory
        self._hold = hold
        self._access_figures = access_figures
        self._config = state.config
        self._store = state.store
        self._puts = state.puts
        self._limits = state.limits
        self._topics = state.topics
        self._offsets = state.offsets
        self._clients = state.clients
        self._stats = state.stats
        self._clock = state.clock
        self._figures = figures
        self._roles = roles
        self._directory = directory

    def collect(self) -> Iterator[Metric | None]:
        """Yield all metrics with their current values, and None at every small step (see `MetricsServer`)."""
        yield from self._broker()
        yield from self._slaves()
        yield from self._role()
        yield from self._failures()
        yield from self._connections()
        yield self._mappings()
        yield self._limit_refusals()
        yield from self._access()
        yield from self._runtime()
        yield from self._topic_metrics()
        yield from self._group_metrics()

    def _tps(self, name: str, key: str) -> float:
        data = self._stats.view(name, key, self._clock())
        return data.stats_minute.tps if data is not None else 0.0

    def _minute(self, name: str, key: str) -> int:
        data = self._stats.view(name, key, self._clock())
        return data.stats_minute.sum if data is not None else 0

    def _broker(self) -> Iterator[GaugeMetricFamily]:
        config = self._config
        labels = (config.broker_cluster_name, f"{config.broker_ip1}:{config.listen_port}", config.broker_name)
        for name, counted in (("rocketmq_broker_tps", BROKER_PUT_NUMS), ("rocketmq_broker_qps", BROKER_GET_NUMS)):
            family = GaugeMetricFamily(name, counted, labels=("cluster", "brokerIP", "broker"))
            family.add_metric(labels, self._tps(counted, config.broker_cluster_name))
            yield family

    def _slaves(self) -> Iterator[GaugeMetricFamily]:
        labels, slaves = ("cluster", "broker", "slave"), self._roles.slaves()
        for name, text, lags in (
            ("bytes", "bytes of the log that the slave does not have yet", [slave.lag_bytes for slave in slaves]),
            ("seconds", "age of the oldest message that it does not have", [slave.lag_seconds for slave in slaves]),
        ):
            family = GaugeMetricFamily(f"rocketmq_slave_behind_{name}", text, labels=labels)
            for slave, lag in zip(slaves, lags, strict=True):
                if lag is None:
                    continue
                family.add_metric((self._config.broker_cluster_name, self._config.broker_name, slave.address), lag)
            yield family

    def _role(self) -> Iterator[Metric]:
        own = (self._config.broker_cluster_name, self._config.broker_name)
        role = self._store.config.broker_role.value
        epoch = GaugeMetricFamily(
            "rocketmq_broker_epoch", "last epoch of the log", labels=("cluster", "broker", "role")
        )
        epoch.add_metric((*own, role), self._roles.epoch)
        yield epoch
        text = "1 if the broker accepts messages, else 0"
        accepting = GaugeMetricFamily("rocketmq_broker_is_accepting", text, labels=("cluster", "broker"))
        accepting.add_metric(own, int(self._roles.is_accepting))
        yield accepting
        text = "when the role of the broker switched last; 0 if it never did"
        last = GaugeMetricFamily("rocketmq_broker_last_switch_timestamp_seconds", text, labels=("cluster", "broker"))
        last.add_metric(own, self._roles.last_switch.at_ms / 1000)
        yield last
        labels = ("cluster", "broker", "reason")
        switches = CounterMetricFamily("rocketmq_broker_switches", "switches of the role, by reason", labels=labels)
        for reason in SwitchReason:  # also those without a switch: a rate needs the 0 before the first one
            switches.add_metric((*own, reason), self._roles.switches.get(reason, 0))
        yield switches

    def _failures(self) -> Iterator[CounterMetricFamily]:
        labels, own = ("cluster", "broker", "put"), (self._config.broker_cluster_name, self._config.broker_name)
        text = "failed attempts of internal puts, which are retried"
        family = CounterMetricFamily("rocketmq_internal_put_failures", text, labels=labels)
        for kind, count in sorted(self._puts.failures.items()):
            family.add_metric((*own, kind), count)
        yield family

    def _connections(self) -> Iterator[Metric]:
        own = (self._config.broker_cluster_name, self._config.broker_name)
        for name, text, value in (
            ("rocketmq_unsent_bytes", "bytes that congested connections have not sent", self._memory.unsent_total),
            ("rocketmq_partial_frame_bytes", "bytes of frames that are not complete", self._memory.partial_total),
            ("rocketmq_held_pulls", "pulls that wait for a message", len(self._hold)),
        ):
            gauge = GaugeMetricFamily(name, text, labels=("cluster", "broker"))
            gauge.add_metric(own, value)
            yield gauge
        text = "connections that a limit closed, or did not accept"
        family = CounterMetricFamily("rocketmq_connections_closed", text, labels=("cluster", "broker", "limit"))
        for key, count in sorted(self._memory.closed.items()):
            family.add_metric((*own, key), count)
        yield family

    def _mappings(self) -> GaugeMetricFamily:
        pool = self._store.mapping_pool
        text = "used part of the descriptors and mappings of ConsumeQueues"
        family = GaugeMetricFamily("rocketmq_consumequeue_mappings_ratio", text, labels=("cluster", "broker", "limit"))
        own = self._config.broker_cluster_name, self._config.broker_name
        family.add_metric((*own, pool.limited_by), pool.count / max(pool.limit, 1))
        return family

    def _limit_refusals(self) -> CounterMetricFamily:
        labels, own = ("cluster", "broker", "limit"), (self._config.broker_cluster_name, self._config.broker_name)
        family = CounterMetricFamily(
            "rocketmq_limit_refusals", "requests refused by a limit, by its key", labels=labels
        )
        for key, count in sorted(self._limits.refusals.items()):
            family.add_metric((*own, key), count)
        return family

    def _access(self) -> Iterator[Metric]:
        figures = self._access_figures()
        labels, own = ("cluster", "broker"), (self._config.broker_cluster_name, self._config.broker_name)
        broken = GaugeMetricFamily(
            "rocketmq_acl_broken_files", "files that keep their last good accounts", labels=labels
        )
        broken.add_metric(own, figures.broken_files)
        denied = CounterMetricFamily("rocketmq_access_denied", "requests that access control denied", labels=labels)
        denied.add_metric(own, figures.denied)
        dropped = CounterMetricFamily("rocketmq_audit_dropped", "lines that the audit log lost", labels=labels)
        dropped.add_metric(own, figures.dropped)
        yield from (broken, denied, dropped)

    def _runtime(self) -> Iterator[GaugeMetricFamily]:
        figures, config = self._figures(), self._config
        names = ("cluster", "brokerIP", "brokerHost", "des", "boottime", "broker_version")
        labels = (
            config.broker_cluster_name,
            f"{config.broker_ip1}:{config.listen_port}",
            config.broker_name,
            figures["brokerVersionDesc"],
            figures["bootTimestamp"],
            figures["brokerVersion"],
        )
        values: dict[str, str | int] = {name: figures[key] for key, name in _RUNTIME.items()}
        for key, name in _RUNTIME_RATES.items():
            values |= {f"{name}{seconds}": rate for seconds, rate in zip(_WINDOWS_S, figures[key].split(), strict=True)}
        disk = shutil.disk_usage(self._directory)
        values |= {
            "commitlogdir_capacity_total": disk.total,
            "commitlogdir_capacity_free": disk.free,
            "remain_howmanydata_toflush": self._store.max_physical_offset - self._store.flushed_physical_offset,
        }
        for name, value in values.items():
            family = GaugeMetricFamily(f"rocketmq_brokeruntime_{name}", name, labels=names)
            family.add_metric(labels, float(value))
            yield family

    def _topic_metrics(self) -> Iterator[GaugeMetricFamily | None]:
        own = self._config.broker_cluster_name, self._config.broker_name
        stored = GaugeMetricFamily(
            "rocketmq_producer_offset", "messages stored since the creation of the topic", labels=_TOPIC_LABELS
        )
        retried = GaugeMetricFamily("rocketmq_topic_retry_offset", "messages in the retry topic", labels=_TOPIC_LABELS)
        dead = GaugeMetricFamily("rocketmq_topic_dlq_offset", "dead letters", labels=("cluster", "broker", "group"))
        tps = GaugeMetricFamily("rocketmq_producer_tps", "messages put per second", labels=_TOPIC_LABELS)
        size = GaugeMetricFamily("rocketmq_producer_message_size", "bytes put per second", labels=_TOPIC_LABELS)
        for config in list(self._topics):  # topics may be created between two steps
            topic, count = config.topic_name, 0
            for number in range(config.write_queue_nums):
                count += max(0, self._store.max_offset(topic, number))
                if number % _QUEUES_PER_STEP == 0:
                    yield None
            if topic.startswith(RETRY_PREFIX):
                retried.add_metric((*own, topic), count)
            elif topic.startswith(DLQ_PREFIX):
                dead.add_metric((*own, topic.removeprefix(DLQ_PREFIX)), count)
            else:
                stored.add_metric((*own, topic), count)
            tps.add_metric((*own, topic), self._tps(TOPIC_PUT_NUMS, topic))
            size.add_metric((*own, topic), self._tps(TOPIC_PUT_SIZE, topic))
        yield from (stored, retried, dead, tps, size, self._producers())

    def _producers(self) -> GaugeMetricFamily:
        labels = ("cluster", "broker", "group")
        family = GaugeMetricFamily("rocketmq_producer_count", "clients of the producer group", labels=labels)
        for name, clients in self._clients.producers.items():
            family.add_metric((self._config.broker_cluster_name, self._config.broker_name, name), len(clients))
        return family

    def _group_metrics(self) -> Iterator[GaugeMetricFamily | None]:
        own = self._config.broker_cluster_name, self._config.broker_name
        tps = GaugeMetricFamily("rocketmq_consumer_tps", "messages read per second", labels=_GROUP_LABELS)
        size = GaugeMetricFamily("rocketmq_consumer_message_size", "bytes read per second", labels=_GROUP_LABELS)
        done = GaugeMetricFamily(
            "rocketmq_consumer_offset", "sum of the committed consumer offsets", labels=_GROUP_LABELS
        )
        returned = GaugeMetricFamily(
            "rocketmq_send_back_nums", "messages sent back in the last minute", labels=_GROUP_LABELS
        )
        latency = GaugeMetricFamily(
            "rocketmq_group_get_latency_by_storetime",
            "age in ms of the next message of the group",
            labels=_GROUP_LABELS,
        )
        diffs = {
            prefix: GaugeMetricFamily(f"rocketmq_group_{name}", "backlog of the group", labels=_BACKLOG_LABELS)
            for prefix, name in (("", "diff"), (RETRY_PREFIX, "retrydiff"), (DLQ_PREFIX, "dlqdiff"))
        }
        for key, offsets in list(self._offsets.table().items()):
            topic, _, group = key.partition(group_key("", ""))
            if self._topics.get(topic) is None:
                continue
            labels, counted, committed = (*own, topic, group), group_key(topic, group), dict(offsets)
            # Offsets may be ahead of the queue for a moment, after a reset or on a slave: those count as no backlog.
            ahead = latency_ms = 0
            for step, (number, at) in enumerate(committed.items()):
                ahead += max(0, self._store.max_offset(topic, number, visible=True) - at)
                latency_ms = max(latency_ms, self._latency_ms(topic, number, at))
                if step % _QUEUES_PER_STEP == 0:
                    yield None
            tps.add_metric(labels, self._tps(GROUP_GET_NUMS, counted))
            size.add_metric(labels, self._tps(GROUP_GET_SIZE, counted))
            done.add_metric(labels, sum(committed.values()))
            returned.add_metric(labels, self._minute(SNDBCK_PUT_NUMS, counted))
            latency.add_metric(labels, latency_ms)
            members = self._clients.consumers.get(group)
            count, model = (len(members.members), members.message_model) if members is not None else (0, "")
            # The backlog of retry and dead letter topics has its own metrics.
            prefix = next((kind for kind in (RETRY_PREFIX, DLQ_PREFIX) if topic.startswith(kind)), "")
            diffs[prefix].add_metric((group, topic, str(count), model), ahead)
        yield from (tps, size, done, returned, latency, *diffs.values(), self._members())

    def _latency_ms(self, topic: str, queue_id: int, queue_offset: int) -> int:
        next_ms = self._store.store_time(topic, queue_id, max(queue_offset, self._store.min_offset(topic, queue_id)))
        return max(0, self._clock() - next_ms) if next_ms >= 0 else 0

    def _members(self) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            "rocketmq_group_count", "clients of the consumer group", labels=("caddr", "localaddr", "group")
        )
        for name, group in self._clients.consumers.items():
            addresses = ",".join(sorted(connection.peer for connection in group.members))
            family.add_metric((addresses, ",".join(sorted(group.client_ids)), name), len(group.members))
        return family
