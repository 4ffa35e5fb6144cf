"""Settings of a name server, by the keys of Apache's namesrv.conf.

Corresponds to `NamesrvConfig` of Apache RocketMQ 4.9.8; `WITHOUT_EFFECT` lists its other keys. Deliberate difference: a
key that neither has is an error, while Apache ignores it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rucola import settings
from rucola.remoting.netty_settings import NETTY_SERVER_SETTINGS
from rucola.settings import Port, Seconds

WITHOUT_EFFECT: Final = NETTY_SERVER_SETTINGS.keys() | {"clusterTest", "productEnvName", "rocketmqHome"}
"""Keys of Apache's namesrv.conf that have no meaning here."""


@dataclass(slots=True, frozen=True)
class NamesrvConfig:
    """Where the name server listens and what it stores."""

    bind_address: str = "0.0.0.0"
    """Address on which the name server listens. Set it to 127.0.0.1 to admit only this machine."""
    listen_port: Port = 9876
    """Port on which the name server listens; 0 selects a free port."""
    kv_config_path: Path | None = None
    """File of the key-value table; by default it is kept in memory. Set it if ordered topics are configured in it."""
    config_store_path: Path | None = None
    """File that a changed configuration is written to; by default a change lasts until the name server stops."""
    order_message_enable: bool = False
    """Whether routes include the order configuration of their topic."""
    server_channel_max_idle_time_seconds: Seconds = 120
    """Time after which an idle connection is closed; 0 never closes one."""
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"
    """Keys, joined by `;`, that cannot be changed over the network."""

    @property
    def fixed_keys(self) -> set[str]:
        """The keys that only a restart can change."""
        listed = {key.strip() for key in self.config_black_list.split(";")}
        return listed | {"configBlackList", "configStorePath", "kvConfigPath", "bindAddress", "listenPort"}


def from_properties(properties: Mapping[str, str]) -> tuple[NamesrvConfig, list[str]]:
    """Parse a namesrv.conf: return the settings, and Apache's keys in it that have no effect here.

    Raises ConfigError, which names the key, for an invalid value or an unknown key.
    """
    unused = settings.without_effect((NamesrvConfig,), WITHOUT_EFFECT, properties)
    return settings.fill(NamesrvConfig, properties), unused
