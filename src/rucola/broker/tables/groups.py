"""Consumer groups of a broker: `config/subscriptionGroup.json`.

A group comes into being when an operator creates it or, where `autoCreateSubscriptionGroup` allows it, when it is
first heard of. Every change raises the data version and is told to `on_change`, which has it written.

Answers to `SubscriptionGroupManager` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from rucola.broker.config import BrokerConfig
from rucola.message.topics import check_group
from rucola.protocol.body import to_body
from rucola.protocol.group import SYSTEM_GROUPS
from rucola.protocol.topic import DataVersion, SubscriptionGroupConfig, SubscriptionGroupWrapper
from rucola.store.config_files import ConfigFile


class SubscriptionGroupTable:
    """The groups by name, with their data version."""

    def __init__(self, path: Path, config: BrokerConfig, on_change: Callable[[], None]) -> None:
        self._file = ConfigFile(path)
        self._config = config
        self._on_change = on_change
        self.data_version = DataVersion()
        self._table: dict[str, SubscriptionGroupConfig] = {}

    def load(self) -> None:
        """Read what was written, then add the system's own groups. StoreCorrupt where the file cannot be read."""
        value = self._file.read()
        if value:
            stored = to_body(SubscriptionGroupWrapper, value)
            self._table = stored.subscription_group_table
            self.data_version = stored.data_version
        for name, broadcast in SYSTEM_GROUPS.items():
            if name not in self._table:
                self._table[name] = SubscriptionGroupConfig(group_name=name, consume_broadcast_enable=broadcast)

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the group's settings, or None if there are none. Creates nothing."""
        return self._table.get(group)

    def find(self, group: str, now_ms: int) -> SubscriptionGroupConfig | None:
        """The group, made now where that is allowed; None for an unknown one. InvalidMessage for an illegal name."""
        config = self._table.get(group)
        if config is None and self._config.auto_create_subscription_group:
            check_group(group)
            config = SubscriptionGroupConfig(group_name=group)
            self.put(config, now_ms)
        return config

    def should_notify(self, group: str) -> bool:
        """Whether members of the group are told when others come or go."""
        config = self._table.get(group)
        return config is None or config.notify_consumer_ids_changed_enable

    def put(self, config: SubscriptionGroupConfig, now_ms: int) -> None:
        """Create the group or replace its settings."""
        self._table[config.group_name] = config
        self.data_version = self.data_version.next(now_ms)
        self._on_change()

    def remove(self, group: str, now_ms: int) -> None:
        """Forget the group's settings, where there are any."""
        if self._table.pop(group, None) is not None:
            self.data_version = self.data_version.next(now_ms)
            self._on_change()

    def __iter__(self) -> Iterator[SubscriptionGroupConfig]:
        return iter(self._table.values())

    def replace(self, groups: SubscriptionGroupWrapper) -> None:
        """Have what a master has, its data version included."""
        self._table = groups.subscription_group_table
        self.data_version = groups.data_version
        self._on_change()

    def wrapper(self) -> SubscriptionGroupWrapper:
        """Everything, as GET_ALL_SUBSCRIPTIONGROUP_CONFIG carries it."""
        return SubscriptionGroupWrapper(data_version=self.data_version, subscription_group_table=self._table)

    def snapshot_writer(self) -> Callable[[], None]:
        """Return a call, for any thread, that writes the table as it is now."""
        written = SubscriptionGroupWrapper(data_version=self.data_version, subscription_group_table=dict(self._table))
        return self._file.prepare_write(lambda: msgspec.to_builtins(written))
