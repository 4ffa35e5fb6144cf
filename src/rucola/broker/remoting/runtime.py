"""The broker about itself: figures, configuration, statistics.

UPDATE_BROKER_CONFIG (25), GET_BROKER_CONFIG (26), GET_BROKER_RUNTIME_INFO (28), GET_SYSTEM_TOPIC_LIST_FROM_BROKER
(305), VIEW_BROKER_STATS_DATA (315).

A configuration is changed as a whole or not at all. Every key must be known and its value must fit; keys that are only
read at the start (`CHANGEABLE` holds the others) may be given the value that they have, and no other. A change is
written into the configuration file that the broker was started with, before it takes effect; without such a file it
lasts until the broker stops.

Answers to parts of `AdminBrokerProcessor` of Apache RocketMQ 4.9.8. Deliberate differences: Apache takes unknown keys
and values that cannot be read without a word, "changes" what has no effect before a restart, and writes all settings
over the file, comments and all. Figures of thread pools and buffers, of which there are none here, are 0; those that
are not measured (how long puts and gets took, how many puts failed) are left out.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from rucola import fastjson, settings
from rucola.broker.background.registration import Registration
from rucola.broker.config import BrokerConfig
from rucola.broker.delivery.delay import ScheduleMessageService
from rucola.broker.stats import BrokerStats
from rucola.broker.tables.topics import TopicConfigTable
from rucola.errors import ConfigError, RemoteProtocolError
from rucola.files import replace_file
from rucola.message import topics as names
from rucola.message.record import peek
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import VERSION, VERSION_TEXT, Header, RemotingCommand
from rucola.protocol.kv import KVTable
from rucola.protocol.route import TopicList
from rucola.protocol.stats import ViewBrokerStatsDataRequestHeader
from rucola.remoting.connection import Answer, Connection, Processor, Reply
from rucola.store.config import StoreConfig
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

CHANGEABLE = {
    "autoCreateSubscriptionGroup",
    "autoCreateTopicEnable",
    "brokerFastFailureEnable",
    "brokerPermission",
    "cleanFileForciblyEnable",
    "defaultQueryMaxNum",
    "deleteCommitLogFilesInterval",
    "destroyMapedFileIntervalForcibly",
    "diskMaxUsedSpaceRatio",
    "diskSpaceCleanForciblyRatio",
    "diskSpaceWarningLevelRatio",
    "fileReservedTime",
    "haSlaveFallbehindMax",
    "longPollingEnable",
    "maxMessageSize",
    "maxTransferBytesOnMessageInMemory",
    "maxTransferCountOnMessageInMemory",
    "offsetCheckInSlave",
    "osPageCacheBusyTimeOutMills",
    "registerBrokerTimeoutMills",
    "shortPollingTimeMills",
    "slaveReadEnable",
    "slaveTimeout",
    "syncFlushTimeout",
    "waitTimeMillsInHeartbeatQueue",
    "waitTimeMillsInPullQueue",
    "waitTimeMillsInSendQueue",
    "waitTimeMillsInTransactionQueue",
}
"""The keys whose values are read anew each time they are needed."""

_SHOWN_IN_ROUTES = {"auto_create_topic_enable", "broker_permission"}
"""The fields that change what the broker registers."""

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


class ConfigVersionHeader(Header, kw_only=True):
    """With GET_BROKER_CONFIG: which version of the configuration, a DataVersion as JSON."""

    version: str


class RuntimeProcessor:
    """Answers from the configuration, the store and the statistics."""

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        store: MessageStore,
        topics: TopicConfigTable,
        registration: Registration,
        stats: BrokerStats,
        delayed: ScheduleMessageService,
        clock: Callable[[], int],
        config_file: Path | None = None,
    ) -> None:
        self._config = config
        self._config_file = config_file
        self._store_config = store_config
        self._store = store
        self._topics = topics
        self._registration = registration
        self._stats = stats
        self._delayed = delayed
        self._clock = clock
        self._changes = 0
        self._changed_ms = stats.begin_ms

    def table(self) -> dict[int, Processor]:
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self.update_broker_config,
            RequestCode.GET_BROKER_CONFIG: self.get_broker_config,
            RequestCode.GET_BROKER_RUNTIME_INFO: self.get_broker_runtime_info,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.get_system_topic_list,
            RequestCode.VIEW_BROKER_STATS_DATA: self.view_broker_stats_data,
        }

    # Configuration.

    def _properties(self) -> dict[str, str]:
        store = settings.to_properties(self._store_config)
        del store["storeHost"]  # not a setting, but what the broker's address gives
        return settings.to_properties(self._config) | store

    def get_broker_config(self, connection: Connection, command: RemotingCommand) -> Reply:
        version = fastjson.dumps({"counter": self._changes, "timestamp": self._changed_ms}).decode()
        return command.response(
            ResponseCode.SUCCESS,
            ConfigVersionHeader(version=version),
            settings.render(self._properties()).encode("utf-8"),
        )

    async def update_broker_config(self, connection: Connection, command: RemotingCommand) -> Answer:
        try:
            wanted = settings.parse(command.body.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"a configuration that is not UTF-8: {error.reason}") from None
        present = self._properties()
        unknown = sorted(wanted.keys() - present.keys())
        if unknown:
            raise ConfigError(f"{', '.join(unknown)}: this broker has no such setting; getBrokerConfig lists all")
        for_broker = settings.changes(BrokerConfig, wanted)
        for_store = settings.changes(StoreConfig, wanted)
        fixed = sorted(key for key in wanted.keys() - CHANGEABLE if wanted[key].strip() != present[key])
        if fixed:
            return command.response(
                ResponseCode.NO_PERMISSION,
                remark=f"{', '.join(fixed)}: read at the start only; write it into broker.conf and start anew",
            )
        try:
            await asyncio.to_thread(self._keep, {key: value.strip() for key, value in wanted.items()})
        except (OSError, UnicodeDecodeError) as error:
            return command.response(
                ResponseCode.SYSTEM_ERROR,
                remark=f"{self._config_file} cannot be written, so nothing is changed: {error}",
            )
        for config, changes in ((self._config, for_broker), (self._store_config, for_store)):
            for name, value in changes.items():
                setattr(config, name, value)
        logger.info("%s changed the configuration: %s", connection.peer, wanted)
        self._changes += 1
        self._changed_ms = self._clock()
        if not for_broker.keys().isdisjoint(_SHOWN_IN_ROUTES):
            self._topics.add_system_topics(self._clock())
            self._topics.bump_data_version(self._clock())
            await self._registration.wait_registered()
        return command.response(ResponseCode.SUCCESS)

    def _keep(self, wanted: dict[str, str]) -> None:
        """Write the settings into the configuration file, where there is one. Raises OSError, UnicodeDecodeError."""
        if self._config_file is not None:
            text = settings.replaced(self._config_file.read_text(encoding="utf-8"), wanted)
            replace_file(self._config_file, text.encode("utf-8"))

    # Figures.

    def get_broker_runtime_info(self, connection: Connection, command: RemotingCommand) -> Reply:
        return command.response(ResponseCode.SUCCESS, body=encode_body(KVTable(table=self.figures())))

    def figures(self) -> dict[str, str]:
        """All figures by Apache's names, sorted."""
        self._store.reput()  # what was put is counted when it is dispatched
        return dict(sorted((self._process() | self._traffic() | self._space()).items()))

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
            "bootTimestamp": str(self._stats.begin_ms),
            "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]",
        }

    def _traffic(self) -> dict[str, str]:
        stats, now_ms = self._stats, self._clock()

        def rates(*items: tuple[float, float, float]) -> str:
            return " ".join(str(sum(window)) for window in zip(*items, strict=True))

        found, missed = stats.found.rates(now_ms), stats.missed.rates(now_ms)
        put_nums, put_size = stats.put_nums.sum, stats.put_size.sum
        return {
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
        log, root = self._store_config.commit_log_directory, self._store_config.store_path_root_dir
        disk = shutil.disk_usage(root)
        ratio = f"{disk.used / disk.total:.2f}"
        first = store.record_at(store.min_physical_offset)
        return {
            "commitLogMinOffset": str(store.min_physical_offset),
            "commitLogMaxOffset": str(store.max_physical_offset),
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{log}": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": f"Total : {_bytes_text(disk.total)}, Free : {_bytes_text(disk.free)}.",
            "remainHowManyDataToFlush": _bytes_text(store.max_physical_offset - store.flushed_physical_offset),
            "dispatchBehindBytes": "0",
            "pageCacheLockTimeMills": "0",
            "earliestMessageTimeStamp": str(peek(first).store_timestamp if first is not None else -1),
        } | {
            f"scheduleMessageOffset_{level}": f"{offset},{store.max_offset(names.SCHEDULE_TOPIC, level - 1)}"
            for level, offset in self._delayed.offsets().items()
        }

    def get_system_topic_list(self, connection: Connection, command: RemotingCommand) -> Reply:
        body = TopicList(topic_list=sorted(self._topics.system_topics))
        return command.response(ResponseCode.SUCCESS, body=encode_body(body))

    def view_broker_stats_data(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(ViewBrokerStatsDataRequestHeader)
        self._store.reput()
        data = self._stats.view(header.stats_name, header.stats_key, self._clock())
        if data is None:
            return command.response(
                ResponseCode.SYSTEM_ERROR, remark=f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            )
        return command.response(ResponseCode.SUCCESS, body=encode_body(data))


def _bytes_text(size: int) -> str:
    """`818 B`, `72.5 GiB`, as Apache writes sizes."""
    power = max(0, size.bit_length() - 1) // 10
    return f"{size} B" if power == 0 else f"{size / 1024**power:.1f} {_UNITS[power - 1]}"
