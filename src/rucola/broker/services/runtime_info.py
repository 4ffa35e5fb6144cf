"""Runtime information: figures and statistics of a running broker, by Apache's names.

Corresponds to parts of `AdminBrokerProcessor` of Apache RocketMQ 4.9.8. Deliberate difference: figures of thread pools
and buffers, which do not exist here, are 0.
"""

from __future__ import annotations

from rucola import refusals
from rucola.access import Refused
from rucola.broker.state import BrokerState
from rucola.domain.statistics import BrokerStatsData
from rucola.domain.version import VERSION, VERSION_TEXT
from rucola.message.record import peek
from rucola.message.topics import SCHEDULE_TOPIC
from rucola.version import FULL_VERSION

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


class RuntimeInfoService:
    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._stats = state.stats
        self._clock = state.clock
        self._store = state.store
        self._delayed = state.delayed

    def figures(self) -> dict[str, str]:
        """Return all figures by Apache's names, sorted."""
        self._store.reput()  # a put is counted when it is dispatched
        return dict(sorted((self._process() | self._traffic() | self._space()).items()))

    def statistic(self, name: str, key: str) -> BrokerStatsData:
        """Return the last minute, hour and day of a statistic. Raises Refused if nothing was counted under the key."""
        self._store.reput()
        data = self._stats.view(name, key, self._clock())
        if data is None:
            raise Refused(refusals.NO_STATISTIC, name=name, key=key)
        return data

    def system_topics(self) -> list[str]:
        return sorted(self._state.topics.system_topics)

    def _process(self) -> dict[str, str]:
        seconds = max(0, self._clock() - self._stats.begin_ms) // 1000
        minutes, seconds = divmod(seconds, 60)
        hours, minutes = divmod(minutes, 60)
        days, hours = divmod(hours, 24)
        pools = {"EndTransactionQueueSize": "0"}
        for pool in ("sendThreadPoolQueue", "pullThreadPoolQueue", "queryThreadPoolQueue"):
            pools |= {f"{pool}Size": "0", f"{pool}HeadWaitTimeMills": "0", f"{pool}Capacity": "0"}
        return pools | {
            "EndTransactionThreadPoolQueueCapacity": "0",
            "dispatchMaxBuffer": "0",
            "remainTransientStoreBufferNumbs": str(2**31 - 1),  # Apache's figure without a transientStorePool
            "startAcceptSendRequestTimeStamp": "0",
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": VERSION_TEXT,
            "rucolaVersion": FULL_VERSION,
            "bootTimestamp": str(self._stats.begin_ms),
            "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]",
        }

    def _traffic(self) -> dict[str, str]:
        stats, now_ms = self._stats, self._clock()

        def rates(*items: tuple[float, float, float]) -> str:
            return " ".join(str(sum(window)) for window in zip(*items, strict=True))

        found, missed = stats.found.rates(now_ms), stats.missed.rates(now_ms)
        put_nums, put_size = stats.put_nums.sum, stats.put_size.sum
        durations = stats.put_durations
        return {
            "putLatency99": f"{durations.percentile_ms(0.99):.2f}",
            "putLatency999": f"{durations.percentile_ms(0.999):.2f}",
            "putMessageDistributeTime": durations.distribution(),
            "putMessageEntireTimeMax": str(durations.max_ms),
            "putMessageFailedTimes": str(stats.failed_puts),
            "getMessageEntireTimeMax": str(stats.get_max_ms),
            "putTps": rates(stats.put_nums.rates(now_ms)),
            "getFoundTps": rates(found),
            "getMissTps": rates(missed),
            "getTotalTps": rates(found, missed),
            "getTransferedTps": rates(stats.get_nums.rates(now_ms)),
            "putMessageTimesTotal": str(put_nums),
            "putMessageSizeTotal": str(put_size),
            "putMessageAverageSize": str(put_size / put_nums if put_nums else 0.0),
            "msgPutTotalTodayNow": str(put_nums),
            "msgPutTotalTodayMorning": str(stats.put_at_midnight.today),
            "msgPutTotalYesterdayMorning": str(stats.put_at_midnight.yesterday),
            "msgGetTotalTodayNow": str(stats.get_nums.sum),
            "msgGetTotalTodayMorning": str(stats.get_at_midnight.today),
            "msgGetTotalYesterdayMorning": str(stats.get_at_midnight.yesterday),
        }

    def _space(self) -> dict[str, str]:
        store = self._store
        log, queues = store.disks
        ratio = f"{log.used / max(log.total, 1):.2f}"
        first = store.record_at(store.min_physical_offset)
        return {
            "commitLogMinOffset": str(store.min_physical_offset),
            "commitLogMaxOffset": str(store.max_physical_offset),
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{store.config.commit_log_directory}": ratio,
            "consumeQueueDiskRatio": f"{queues.used / max(queues.total, 1):.2f}",
            "commitLogDirCapacity": f"Total : {_bytes_text(log.total)}, Free : {_bytes_text(log.total - log.used)}.",
            "remainHowManyDataToFlush": _bytes_text(store.max_physical_offset - store.flushed_physical_offset),
            "dispatchBehindBytes": "0",
            "pageCacheLockTimeMills": "0",
            "earliestMessageTimeStamp": str(peek(first).store_timestamp if first is not None else -1),
        } | {
            f"scheduleMessageOffset_{level}": f"{offset},{store.max_offset(SCHEDULE_TOPIC, level - 1)}"
            for level, offset in self._delayed.progress().items()
        }


def _bytes_text(size: int) -> str:
    """`818 B`, `72.5 GiB`, as in Apache."""
    power = max(0, size.bit_length() - 1) // 10
    return f"{size} B" if power == 0 else f"{size / 1024**power:.1f} {_UNITS[power - 1]}"
