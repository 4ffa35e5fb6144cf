"""Configuration: the settings of a running broker, read and changed by operators.

A change is applied as a whole or not at all. Every key must exist and its value be valid. Keys read only at the start
(all except `CHANGEABLE`) must keep their value. A change is written to the configuration file before it takes effect;
without such a file it lasts until the stop.

Corresponds to parts of `AdminBrokerProcessor` of Apache RocketMQ 4.9.8. Deliberate differences: Apache silently accepts
unknown keys and unreadable values, "changes" settings that have no effect before a restart, and overwrites the file
with all settings, so that comments are lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from rucola import refusals, settings
from rucola.access import Caller, Refused
from rucola.broker.apache_settings import APACHE_SETTINGS, WITHOUT_EFFECT
from rucola.broker.config import BrokerConfig, from_properties
from rucola.broker.state import BrokerState
from rucola.errors import ConfigError
from rucola.files import replace_file
from rucola.store.config import StoreConfig

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

_REGISTERED = {"autoCreateTopicEnable", "brokerPermission"}


_OWN = {"brokerName", "brokerIP1", "brokerIP2", "storePathRootDir", "storeHost"}
"""Names, addresses and directories, which each broker has of its own."""


def default_properties() -> dict[str, str]:
    """Return the defaults of what `properties` returns; settings that each broker has of its own have none."""
    defaults = settings.to_properties(BrokerConfig()) | settings.to_properties(StoreConfig())
    return {key: value for key, value in (APACHE_SETTINGS | defaults).items() if key not in _OWN}


class ConfigurationService:
    """Reads and changes the settings of broker and store. `topics_registered` waits for the name servers."""

    def __init__(self, state: BrokerState, file: Path | None, topics_registered: Callable[[], Awaitable[None]]) -> None:
        self._state = state
        self._file = file
        self._topics_registered = topics_registered
        self._at_start = {} if file is None else settings.read(file)
        """The file at the start, to find changed keys that need a restart."""
        self._changes = 0
        self._changed_ms = state.stats.begin_ms

    @property
    def version(self) -> dict[str, int]:
        """A DataVersion: the number of changes since the start and the time of the last."""
        return {"counter": self._changes, "timestamp": self._changed_ms}

    def properties(self) -> dict[str, str]:
        """Return all settings by the keys of broker.conf, and those that only Apache's broker has."""
        return APACHE_SETTINGS | self._own()

    async def update(self, caller: Caller, text: bytes) -> None:
        """Change the settings in `text`, lines of a broker.conf. Raises ConfigError, RemoteProtocolError or Refused."""
        wanted = settings.parse_request(text, self._state.config.max_json_body_size)
        # 1. Validate everything first: a change is applied as a whole or not at all.
        present = self._own()
        known = settings.keys_of((BrokerConfig, StoreConfig)) - {"storeHost"}
        for key in sorted(wanted.keys() - known):
            if key in WITHOUT_EFFECT:
                raise ConfigError(f"{key}: a setting of Apache's broker that has no effect here")
            raise settings.unknown_key(key, known)
        for kind in (BrokerConfig, StoreConfig):
            settings.changes(kind, wanted)
        # A key that is not present has no value, or is a secret.
        fixed = sorted(key for key in wanted.keys() - CHANGEABLE if wanted[key].strip() != present.get(key))
        if fixed:
            raise Refused(refusals.SETTINGS_FIXED, keys=", ".join(fixed))
        # 2. Write the file, in a thread: the disk may be slow.
        try:
            await asyncio.to_thread(self._write, {key: value.strip() for key, value in wanted.items()})
        except (OSError, UnicodeDecodeError) as error:
            raise Refused(refusals.CONFIGURATION_NOT_WRITTEN, path=self._file, why=error) from None
        # 3. Apply.
        self._apply(wanted)
        logger.info("%s changed the configuration: %s", caller.address, wanted)
        await self._announce(wanted)

    async def reload(self) -> None:
        """Apply the keys of `CHANGEABLE` in the configuration file, all or none; log others that differ from the start.

        A missing key gets its default. Raises ConfigError if the file is missing or invalid.
        """
        if self._file is None:
            raise ConfigError("the broker was started without a configuration file (-c)")
        given = await asyncio.to_thread(settings.read, self._file)
        with settings.located(self._file):
            config, store_config, _ = from_properties(given)
        wanted = settings.to_properties(config) | settings.to_properties(store_config)
        present = self._own()
        changed = {key: wanted[key] for key in sorted(CHANGEABLE) if wanted[key] != present[key]}
        self._apply(changed)
        fixed = (given.keys() | self._at_start.keys()) - CHANGEABLE
        later = sorted(key for key in fixed if given.get(key) != self._at_start.get(key))
        logger.info(
            "%s reloaded; changed: %s; after a restart: %s",
            self._file, ", ".join(f"{key}={value}" for key, value in changed.items()) or "nothing",
            ", ".join(later) or "nothing",
        )  # fmt: skip
        await self._announce(changed)

    def _own(self) -> dict[str, str]:
        store = settings.to_properties(self._state.store.config)
        del store["storeHost"]  # derived from the broker's address, no setting
        store["storePathCommitLog"] = str(self._state.store.config.commit_log_directory)
        return settings.to_properties(self._state.config) | store

    def _apply(self, changed: Mapping[str, str]) -> None:
        for config in (self._state.config, self._state.store.config):
            for name, value in settings.changes(config, changed).items():
                setattr(config, name, value)
        if changed:
            self._changes += 1
            self._changed_ms = self._state.clock()

    async def _announce(self, changed: Mapping[str, str]) -> None:
        if not _REGISTERED.isdisjoint(changed):
            self._state.topics.add_system_topics(self._state.clock())
            self._state.topics.bump_data_version(self._state.clock())
            await self._topics_registered()

    def _write(self, wanted: dict[str, str]) -> None:
        if self._file is not None:
            text = settings.replaced(self._file.read_text(encoding="utf-8"), wanted)
            replace_file(self._file, text.encode("utf-8"))
