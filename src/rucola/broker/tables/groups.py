"""Consumer groups of a broker: `config/subscriptionGroup.json`.

A group is created by an operator or, with `autoCreateSubscriptionGroup`, by its first request. Every change raises the
data version and calls `on_change`, which schedules a write.

Corresponds to `SubscriptionGroupManager` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rucola.broker.config import BrokerConfig
from rucola.broker.limits import Limits
from rucola.broker.tables.settings_table import SettingsTable
from rucola.domain.group import SYSTEM_GROUPS, SubscriptionGroupConfig, SubscriptionGroupWrapper
from rucola.message.topics import check_group


class SubscriptionGroupTable(SettingsTable[SubscriptionGroupConfig, SubscriptionGroupWrapper]):
    def __init__(
        self,
        path: Path,
        config: BrokerConfig,
        on_change: Callable[[], None],
        limits: Limits,
        *,
        enable_lmq: bool = False,
    ) -> None:
        super().__init__(path, SubscriptionGroupWrapper, on_change, _group if enable_lmq else None)
        self._config = config
        self._limits = limits

    def load(self) -> None:
        """Load the file, and add the system groups. Raises StoreCorrupt if the file cannot be parsed."""
        self._read()
        for name, broadcast in SYSTEM_GROUPS.items():
            if name not in self._table:
                self._add({name: SubscriptionGroupConfig(group_name=name, consume_broadcast_enable=broadcast)})

    def find(self, group: str, now_ms: int) -> SubscriptionGroupConfig | None:
        """Return the group, created if permitted, else None. Raises InvalidMessage for an illegal name, or Refused."""
        # Unknown groups are validated before they are created: their names become parts of topic names and files.
        config = self.get(group)
        if config is None and self._config.auto_create_subscription_group:
            check_group(group)
            self._limits.check_new_group(group, len(self._table))
            config = _group(group)
            self.put(config, now_ms)
        return config

    def should_notify(self, group: str) -> bool:
        config = self._table.get(group)
        return config is None or config.notify_consumer_ids_changed_enable

    def put(self, config: SubscriptionGroupConfig, now_ms: int) -> None:
        self._put(config.group_name, config, now_ms)


def _group(name: str) -> SubscriptionGroupConfig:
    return SubscriptionGroupConfig(group_name=name)
