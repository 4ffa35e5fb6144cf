"""The name server's services: registrations and routes, and its configuration.

As in the broker (`rucola.broker.services`), a service has typed arguments and results or raises Refused; the adapter
for commands is `rucola.namesrv.remoting`.

Corresponds to `DefaultRequestProcessor` of Apache RocketMQ 4.9.8. Deliberate difference: unknown configuration keys and
invalid values are refused; Apache ignores them.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Generator
from pathlib import Path
from typing import NamedTuple

from rucola import refusals, settings
from rucola.access import Caller, Refused
from rucola.domain.route import ORDER_TOPIC_CONFIG, RegisterBrokerBody, TopicRouteData
from rucola.domain.topic import DataVersion
from rucola.errors import ConfigError
from rucola.files import replace_file
from rucola.namesrv.config import WITHOUT_EFFECT, NamesrvConfig, from_properties
from rucola.namesrv.kv import KVConfig
from rucola.namesrv.routes import Registration, RouteTable
from rucola.slices import in_slices

logger = logging.getLogger(__name__)


class Registered(NamedTuple):
    ha_server_addr: str | None
    """Replication address of the master, for slaves only; None without one."""
    master_addr: str | None
    order_config: dict[str, str] | None


class RouteService:
    """Registers brokers and returns routes. Only differences of `clock_ms` count."""

    def __init__(
        self,
        routes: RouteTable,
        kv_config: KVConfig,
        configuration: ConfigurationService,
        clock_ms: Callable[[], int],
    ) -> None:
        self.routes = routes
        self._kv_config = kv_config
        self._configuration = configuration
        self._clock_ms = clock_ms
        self.registrations = 0
        """Successful registrations since the start."""
        self.refused_registrations = 0
        """Registrations that were malformed, above a limit, or a second address of a registered broker."""

    # Brokers.

    @property
    def max_topics(self) -> int:
        return self._configuration.config.max_topics_per_broker

    def registered_again(self, owner: object, broker: Registration, digest: bytes) -> Registered | None:
        """Refresh a master's registration that is equal to its last one; None for any other, see `register`."""
        if not self.routes.is_registered(broker, digest, owner):
            return None
        if broker.master_epoch is not None:
            self.routes.admit_master(broker.broker_addr, broker.broker_name, broker.master_epoch)
        self.routes.refresh(broker.broker_addr, self._clock_ms())
        return self._registered(None)

    def _registered(self, master: tuple[str, str] | None) -> Registered:
        self.registrations += 1
        ha_server_addr, master_addr = master or (None, None)
        return Registered(ha_server_addr, master_addr, self._kv_config.namespace(ORDER_TOPIC_CONFIG))

    def register(
        self, owner: object, broker: Registration, topics: RegisterBrokerBody, digest: bytes
    ) -> Generator[None, None, Registered]:
        """Register a broker or refresh its registration in small steps. `remove_owned` of `owner` removes it.

        `digest` is of the encoded topics, for `registered_again`.
        """
        if broker.master_epoch is not None:
            self.routes.admit_master(broker.broker_addr, broker.broker_name, broker.master_epoch)
        master = yield from self.routes.registration_steps(broker, topics, self._clock_ms(), owner, digest)
        return self._registered(master)

    def confirm(self, address: str, version: DataVersion) -> tuple[bool, DataVersion | None]:
        """Return whether a broker's topics have this version (then refreshed), and the registered version."""
        confirmed = self.routes.confirm(address, version, self._clock_ms())
        return confirmed, self.routes.data_version(address)

    async def set_writable(self, caller: Caller, broker_name: str, writable: bool) -> int:
        """Grant or revoke write permission on all topics of a broker name; return their number."""
        count = await in_slices(self.routes.set_writable_steps(broker_name, writable))
        done = "granted to" if writable else "revoked from"
        logger.info("%s: write permission on %d topics %s broker %s", caller.address, count, done, broker_name)
        return count

    # Routes.

    def route(self, topic: str) -> TopicRouteData:
        """Return the route of a topic. Raises Refused if no broker has it."""
        route = self.routes.route(topic)
        if route is None:
            raise Refused(refusals.NO_ROUTE, topic=topic)
        if self._configuration.config.order_message_enable:
            route.order_topic_conf = self._kv_config.get(ORDER_TOPIC_CONFIG, topic)
        return route


class ConfigurationService:
    def __init__(self, config: NamesrvConfig, file: Path | None = None) -> None:
        self._file = file
        self._at_start = {} if file is None else settings.read(file)
        """The configuration file at the start, to find keys that need a restart."""
        self.config = config
        """The current settings; a change replaces the whole object."""

    def properties(self) -> dict[str, str]:
        """Return all settings by the keys of namesrv.conf."""
        return settings.to_properties(self.config)

    def reload(self) -> None:
        """Apply keys of the file that need no restart; removed keys get defaults. ConfigError if it is invalid."""
        if self._file is None:
            raise ConfigError("the name server was started without a configuration file (-c)")
        given = settings.read(self._file)
        with settings.located(self._file):
            wanted, _ = from_properties(given)
        fixed = self.config.fixed_keys
        shown, present = settings.to_properties(wanted), self.properties()
        changed = {key: shown[key] for key in shown.keys() - fixed if shown[key] != present.get(key)}
        self.config = dataclasses.replace(self.config, **settings.changes(self.config, changed))
        later = sorted(key for key in fixed if given.get(key) != self._at_start.get(key))
        logger.info(
            "%s reloaded; changed: %s; after a restart: %s",
            self._file, ", ".join(f"{key}={value}" for key, value in sorted(changed.items())) or "nothing",
            ", ".join(later) or "nothing",
        )  # fmt: skip

    def update(self, caller: Caller, text: bytes) -> None:
        """Change the settings in `text`, and write all of them to configStorePath.

        Apache's keys without effect here are accepted and logged. Raises Refused for a key that only a restart changes,
        ConfigError for an unknown key or an invalid value, RemoteProtocolError for other errors.
        """
        properties = settings.parse_request(text)
        if self.config.fixed_keys & properties.keys():
            raise Refused(refusals.SETTINGS_BLACKLISTED)
        unused = settings.without_effect((NamesrvConfig,), WITHOUT_EFFECT, properties)
        self.config = dataclasses.replace(self.config, **settings.changes(self.config, properties))
        changed = {key: value for key, value in properties.items() if key not in unused}
        logger.info(
            "%s changed the configuration: %s; without effect: %s", caller.address, changed, ", ".join(unused) or "none"
        )
        if self.config.config_store_path:
            try:
                # Keep comments and secrets, which the properties do not contain.
                path = self.config.config_store_path
                before = path.read_text(encoding="utf-8") if path.exists() else ""
                replace_file(path, settings.replaced(before, self.properties()).encode("utf-8"))
            except UnicodeDecodeError:
                raise ConfigError(f"{path} cannot be written: what it contains now is no text") from None
            except OSError as error:
                raise ConfigError(f"{self.config.config_store_path} cannot be written: {error.strerror}") from None
