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
    rocketmq_group_diff, _retrydiff, _dlqdiff        group topic msgModel            backlog
    rocketmq_group_count                             group                           clients of a consumer group
    rocketmq_consumer_ready_messages, _inflight_messages, _inflight_age_ms    cluster broker topic group    of POP
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
    rocketmq_pending_messages                        cluster broker kind due         not due yet, or open transactions
    rocketmq_dead_letters                            cluster broker                  neither re-driven nor consumed
    rocketmq_backlog_messages                        cluster broker                  backlogs of all groups
    rocketmq_certificate_expiry_timestamp_seconds    cluster broker                  end of its validity; with TLS only
    rocketmq_clock_timestamp_seconds                 cluster broker                  the broker's clock
    process_...                                      memory, processor time and descriptors of the process (Linux)
    rocketmq_brokeruntime_...                        cluster brokerIP brokerHost des broker_version

and, as of all servers, rucola_build_info            version commit python           1

The rows from the replication lag on, except the last, are additions to the exporter's metrics. The last represents the
figures of GET_BROKER_RUNTIME_INFO, sizes in bytes. Rates are of the last minute. No label changes with a restart or a
client: boottime, countOfOnlineConsumers, caddr and localaddr of the exporter are left out.

`metricsTopicCount` topics, those with the most messages, and `metricsGroupCount` groups on a topic, those with the
greatest backlogs, have time series; the rest are summed as `other`. Slaves export neither, since their master does.

`metricsExporterType=PROM` enables the endpoint at `metricsPromExporterHost` and `metricsPromExporterPort`. RocketMQ 5
has these keys, but other names of metrics. Figures that only Apache's broker has (thread pools, latencies) are absent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from heapq import nlargest
from itertools import chain, islice
from operator import itemgetter
from typing import Any, TypeAlias, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from rucola.broker.assembly.access import AccessFigures
from rucola.broker.pull_request_hold import PullRequestHold
from rucola.broker.role import SwitchReason
from rucola.broker.services.pending import PendingService
from rucola.broker.services.roles import RoleService
from rucola.broker.state import BrokerState
from rucola.domain.pending import DUE_NAMES, PendingMessages
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
from rucola.remoting.budget import ServerBudget

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

RANK_INTERVAL_MS = 60_000
OTHER = "other"
"""Label of the topics and groups without time series of their own."""

_OWN = ("cluster", "broker")
F = TypeVar("F", GaugeMetricFamily, CounterMetricFamily)
_Values: TypeAlias = Mapping[Any, float]
"""By the values of the labels, a tuple."""
_NO_VALUES: _Values = {}


class BrokerCollector:
    """Collects the metrics of one broker. `figures` returns GET_BROKER_RUNTIME_INFO's."""

    def __init__(
        self,
        state: BrokerState,
        figures: Callable[[], dict[str, str]],
        roles: RoleService,
        budget: ServerBudget,
        hold: PullRequestHold,
        access_figures: Callable[[], AccessFigures],
        pending: PendingService,
        certificate_expires_ms: Callable[[], int] | None,
    ) -> None:
        self._pending = pending
        self._certificate_expires_ms = certificate_expires_ms
        self._ranked: tuple[int, PendingMessages] | None = None
        """What waited, and when it was counted: all backlogs are looked at once in RANK_INTERVAL_MS."""
        self._budget = budget
        self._hold = hold
        self._access_figures = access_figures
        self._config = state.config
        self._own = state.config.broker_cluster_name, state.config.broker_name
        self._store = state.store
        self._tiered = state.tiered
        self._puts = state.puts
        self._limits = state.limits
        self._topics = state.topics
        self._offsets = state.offsets
        self._clients = state.clients
        self._pop = state.pop
        self._stats = state.stats
        self._clock = state.clock
        self._figures = figures
        self._roles = roles

    def collect(self) -> Iterator[Metric | None]:
        """Yield all metrics with their current values, and None at every small step (see `MetricsServer`)."""
        yield from self._broker()
        yield from self._runtime()
        if self._store.config.is_slave:
            return
        now_ms = self._clock()
        if self._ranked is None or now_ms >= self._ranked[0] + RANK_INTERVAL_MS:
            self._ranked = now_ms, (yield from self._pending.steps())
        pending = self._ranked[1]
        yield from self._pending_metrics(pending)
        yield from self._topic_metrics()
        yield from self._group_metrics(pending)
        yield from self._pop_metrics()

    def _rate(self, name: str, key: str) -> float:
        return self._stats.minute(name, key, self._clock()).tps

    def _broker(self) -> Iterator[Metric]:
        config, own, roles, budget = self._config, self._own, self._roles, self._budget
        address, cluster = f"{config.broker_ip1}:{config.listen_port}", config.broker_cluster_name
        labels = (*_OWN[:1], "brokerIP", *_OWN[1:])
        for name, counted in (("tps", BROKER_PUT_NUMS), ("qps", BROKER_GET_NUMS)):
            value = self._rate(counted, cluster)
            yield gauge(f"broker_{name}", counted, labels, {(cluster, address, config.broker_name): value})

        slaves, labels = roles.slaves(), (*_OWN, "slave")
        behind = {(*own, slave.address): slave.lag_bytes for slave in slaves}
        yield gauge("slave_behind_bytes", "bytes of the log that the slave does not have yet", labels, behind)
        ages = {(*own, slave.address): slave.lag_seconds for slave in slaves if slave.lag_seconds is not None}
        yield gauge("slave_behind_seconds", "age of the oldest message that it does not have", labels, ages)
        role = self._store.config.broker_role.value
        yield gauge("broker_epoch", "last epoch of the log", (*_OWN, "role"), {(*own, role): roles.epoch})
        pool, text = self._store.mapping_pool, "used part of the descriptors and mappings of ConsumeQueues"
        used = {(*own, pool.limited_by): pool.count / max(pool.limit, 1)}
        yield gauge("consumequeue_mappings_ratio", text, (*_OWN, "limit"), used)

        access = self._access_figures()
        for name, text, figure in (
            ("broker_is_accepting", "1 if the broker accepts messages, else 0", int(roles.is_accepting)),
            (
                "broker_last_switch_timestamp_seconds",
                "when the role of the broker switched last; 0 if it never did",
                roles.last_switch.at_ms / 1000,
            ),
            ("unsent_bytes", "bytes that congested connections have not sent", budget.bytes_out),
            ("partial_frame_bytes", "bytes of frames that are not complete", budget.bytes_in),
            ("held_pulls", "pulls that wait for a message", len(self._hold)),
            ("tiered_cache_bytes", "messages of the lake that are kept for the next pulls", self._tiered.cached_size),
            ("clock_timestamp_seconds", "clock of the broker", self._clock() / 1000),
            ("acl_broken_files", "files that keep their last good accounts", access.broken_files),
        ):
            yield gauge(name, text, _OWN, {own: figure})
        if self._certificate_expires_ms is not None:
            text = "end of the validity of the certificate"
            expires_s = self._certificate_expires_ms() / 1000
            yield gauge("certificate_expiry_timestamp_seconds", text, _OWN, {own: expires_s})
        yield counter("access_denied", "requests that access control denied", _OWN, {own: access.denied})
        yield counter("audit_dropped", "lines that the audit log lost", _OWN, {own: access.dropped})
        failures = {own: self._tiered.failures}
        yield counter("tiered_read_failures", "requests that the lake did not answer", _OWN, failures)
        # Also reasons without a switch: a rate needs the 0 before the first one.
        switches = {str(reason): roles.switches.get(reason, 0) for reason in SwitchReason}
        for name, text, label, counts in (
            ("broker_switches", "switches of the role, by reason", "reason", switches),
            (
                "internal_put_failures",
                "failed attempts of internal puts",
                "put",
                self._puts.failures,
            ),
            ("connections_closed", "connections that a limit closed, or did not accept", "limit", budget.closed),
            ("limit_refusals", "requests refused by a limit, by its key", "limit", self._limits.refusals),
        ):
            values = {(*own, key): count for key, count in sorted(counts.items())}
            yield counter(name, text, (*_OWN, label), values)

    def _runtime(self) -> Iterator[Metric]:
        figures, config = self._figures(), self._config
        names = ("cluster", "brokerIP", "brokerHost", "des", "broker_version")
        labels = (
            config.broker_cluster_name,
            f"{config.broker_ip1}:{config.listen_port}",
            config.broker_name,
            figures["brokerVersionDesc"],
            figures["brokerVersion"],
        )
        values: dict[str, str | int] = {name: figures[key] for key, name in _RUNTIME.items()}
        for key, name in _RUNTIME_RATES.items():
            values |= {f"{name}{seconds}": rate for seconds, rate in zip(_WINDOWS_S, figures[key].split(), strict=True)}
        log_disk, _ = self._store.disks
        values |= {
            "commitlogdir_capacity_total": log_disk.total,
            "commitlogdir_capacity_free": log_disk.total - log_disk.used,
            "remain_howmanydata_toflush": self._store.max_physical_offset - self._store.flushed_physical_offset,
        }
        for name, value in values.items():
            yield gauge(f"brokeruntime_{name}", name, names, {labels: float(value)})

    def _pending_metrics(self, pending: PendingMessages) -> Iterator[Metric]:
        due = {
            (*self._own, kind, name): count
            for kind, of_kind in (("delayed", pending.delayed), ("timed", pending.timed), ("half", pending.half))
            for name, count in zip(DUE_NAMES, of_kind.counts, strict=True)
        }
        text = "messages that are not due, and half messages by their first check; due: already, within a minute, ..."
        yield gauge("pending_messages", text, (*_OWN, "kind", "due"), due)
        text = "dead letters that were neither re-driven nor consumed"
        yield gauge("dead_letters", text, _OWN, {self._own: pending.dead_letter_total})
        yield gauge("backlog_messages", "backlogs of all groups", _OWN, {self._own: pending.backlog_total})

    def _topic_metrics(self) -> Iterator[Metric | None]:
        own, labels = self._own, (*_OWN, "topic")
        counts: dict[str, int] = {}
        for config in list(self._topics):  # topics may be created between two steps
            topic, count = config.topic_name, 0
            for number in range(config.write_queue_nums):
                count += max(0, self._store.max_offset(topic, number))
                if number % _QUEUES_PER_STEP == 0:
                    yield None
            counts[topic] = count
        stored, retried, dead, tps, size = (Counter[tuple[str, ...]]() for _ in range(5))
        shown = frozenset(nlargest(self._config.metrics_topic_count, counts, key=counts.__getitem__))
        for topic, count in counts.items():
            if topic.startswith(DLQ_PREFIX):
                dead[(*own, topic.removeprefix(DLQ_PREFIX) if topic in shown else OTHER)] += count
            else:
                of_kind = retried if topic.startswith(RETRY_PREFIX) else stored
                of_kind[(*own, topic if topic in shown else OTHER)] += count
            key = (*own, topic if topic in shown else OTHER)
            tps[key] += self._rate(TOPIC_PUT_NUMS, topic)  # type: ignore[assignment]
            size[key] += self._rate(TOPIC_PUT_SIZE, topic)  # type: ignore[assignment]
            yield None
        yield gauge("producer_offset", "messages stored since the creation of the topic", labels, stored)
        yield gauge("topic_retry_offset", "messages in the retry topic", labels, retried)
        yield gauge("topic_dlq_offset", "dead letters", (*_OWN, "group"), dead)
        yield gauge("producer_tps", "messages put per second", labels, tps)
        yield gauge("producer_message_size", "bytes put per second", labels, size)
        clients = self._largest({group: len(members) for group, members in self._clients.producers.items()})
        values = {(*own, group): count for group, count in clients.items()}
        yield gauge("producer_count", "clients of the producer group", (*_OWN, "group"), values)

    def _group_metrics(self, pending: PendingMessages) -> Iterator[Metric | None]:
        labels, backlog = (*_OWN, "topic", "group"), ("group", "topic", "msgModel")
        tps = gauge("consumer_tps", "messages read per second", labels)
        size = gauge("consumer_message_size", "bytes read per second", labels)
        done = gauge("consumer_offset", "sum of the committed consumer offsets", labels)
        returned = gauge("send_back_nums", "messages sent back in the last minute", labels)
        latency = gauge("group_get_latency_by_storetime", "age in ms of the next message of the group", labels)
        diffs = {
            prefix: gauge(f"group_{name}", "backlog of the group", backlog)
            for prefix, name in (("", "diff"), (RETRY_PREFIX, "retrydiff"), (DLQ_PREFIX, "dlqdiff"))
        }
        # Those with a backlog when it was counted last, then any.
        table, limit = self._offsets.table(), self._config.metrics_group_count
        keys = dict.fromkeys(group_key(one.topic, one.group) for one in pending.backlogs)
        candidates = chain((key for key in keys if key in table), (key for key in table if key not in keys))
        shown = list(islice(candidates, limit))
        now_ms, shown_total, shown_reads = self._clock(), 0, 0
        for key in shown:
            topic, _, group = key.partition(group_key("", ""))
            if self._topics.get(topic) is None or (offsets := table.get(key)) is None:
                continue
            own, counted, committed = (*self._own, topic, group), group_key(topic, group), dict(offsets)
            # Offsets may be ahead of the queue for a moment, after a reset or on a slave: those count as no backlog.
            ahead = latency_ms = 0
            for step, (number, at) in enumerate(committed.items()):
                ahead += max(0, self._store.max_offset(topic, number, visible=True) - at)
                latency_ms = max(latency_ms, self._latency_ms(topic, number, at))
                if step % _QUEUES_PER_STEP == 0:
                    yield None
            read = self._stats.minute(GROUP_GET_NUMS, counted, now_ms)
            tps.add_metric(own, read.tps)
            shown_reads += read.sum
            size.add_metric(own, self._rate(GROUP_GET_SIZE, counted))
            done.add_metric(own, sum(committed.values()))
            returned.add_metric(own, self._stats.minute(SNDBCK_PUT_NUMS, counted, now_ms).sum)
            latency.add_metric(own, latency_ms)
            members = self._clients.consumers.get(group)
            model = members.message_model if members is not None else ""
            # The backlog of retry and dead letter topics has its own metrics.
            prefix = next((kind for kind in (RETRY_PREFIX, DLQ_PREFIX) if topic.startswith(kind)), "")
            diffs[prefix].add_metric((group, topic, model), ahead)
            shown_total += ahead if prefix != DLQ_PREFIX else 0
        if len(shown) < len(table):
            diffs[""].add_metric((OTHER, OTHER, ""), max(0, pending.backlog_total - shown_total))
            # By counts: the windows of the rates differ, if a group began within the minute.
            read = self._stats.minute(BROKER_GET_NUMS, self._config.broker_cluster_name, now_ms)
            rest = max(0, read.sum - shown_reads) / max(1, read.sum)
            tps.add_metric((*self._own, OTHER, OTHER), rest * read.tps)
        yield from (tps, size, done, returned, latency, *diffs.values())
        clients = self._largest({group: len(members.members) for group, members in self._clients.consumers.items()})
        values = {(group,): count for group, count in clients.items()}
        yield gauge("group_count", "clients of the consumer group", ("group",), values)

    def _largest(self, counts: Mapping[str, int]) -> Mapping[str, int]:
        """Return as many of the largest counts as groups are shown, and the sum of all others."""
        shown = dict(nlargest(self._config.metrics_group_count, counts.items(), key=itemgetter(1)))
        others = sum(counts.values()) - sum(shown.values())
        return shown | {OTHER: others} if len(shown) < len(counts) else shown

    def _pop_metrics(self) -> Iterator[Metric | None]:
        now_ms, labels = self._clock(), (*_OWN, "topic", "group")
        ready: Counter[tuple[str, ...]] = Counter()
        held: Counter[tuple[str, ...]] = Counter()
        ages: dict[tuple[str, ...], int] = {}
        for step, (queue, state) in enumerate(list(self._pop.states.items())):
            own = (*self._own, queue.topic, queue.group)
            ready[own] += max(0, self._store.max_offset(queue.topic, queue.queue_id, visible=True) - state.next_offset)
            held[own] += len(state.outstanding)
            first = next(iter(state.outstanding.values()), None)
            since_ms = first.visible_ms - first.invisible_ms if first is not None and first.attempt else now_ms
            ages[own] = max(ages.get(own, 0), now_ms - since_ms)
            if step % _QUEUES_PER_STEP == 0:
                yield None
        limit, other = self._config.metrics_group_count, (*self._own, OTHER, OTHER)
        if len(ready) > limit:
            shown = set(nlargest(limit, ready, key=lambda key: (ready[key] + held[key], key)))
            shown.add(max(ages, key=lambda key: (ages[key], key in shown)))
            for key in ready.keys() - shown:
                ready[other] += ready.pop(key)
                held[other] += held.pop(key)
                ages[other] = max(ages.get(other, 0), ages.pop(key))
        yield gauge("consumer_ready_messages", "messages that the group has not received by POP", labels, ready)
        yield gauge("consumer_inflight_messages", "messages received by POP and not acknowledged", labels, held)
        yield gauge("consumer_inflight_age_ms", "age in ms of the first of them since it was received", labels, ages)

    def _latency_ms(self, topic: str, queue_id: int, queue_offset: int) -> int:
        next_ms = self._store.store_time(topic, queue_id, max(queue_offset, self._store.min_offset(topic, queue_id)))
        return max(0, self._clock() - next_ms) if next_ms >= 0 else 0


def gauge(name: str, text: str, labels: tuple[str, ...], values: _Values = _NO_VALUES) -> GaugeMetricFamily:
    return _filled(GaugeMetricFamily(f"rocketmq_{name}", text, labels=labels), values)


def counter(name: str, text: str, labels: tuple[str, ...], values: _Values) -> CounterMetricFamily:
    return _filled(CounterMetricFamily(f"rocketmq_{name}", text, labels=labels), values)


def _filled(family: F, values: _Values) -> F:
    for key, value in values.items():
        family.add_metric(key, value)
    return family
