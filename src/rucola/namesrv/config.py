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
from rucola.remoting.netty_keys import NETTY_SERVER_KEYS
from rucola.settings import Bytes, Port, Seconds

WITHOUT_EFFECT: Final = NETTY_SERVER_KEYS | {"clusterTest", "productEnvName"}
"""Keys of Apache's namesrv.conf that have no meaning here."""


_FIXED: Final = {
    "aclEnable", "auditLogMaxFiles", "auditLogMaxSize", "auditLogPath", "bindAddress", "configBlackList",
    "configStorePath", "kvConfigPath", "listenPort", "rocketmqHome",
}  # fmt: skip
"""Keys that are read at the start only."""


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
    acl_enable: bool = False
    """Whether requests need an account of plain_acl.yml, or a white address; see docs/access-control.md.

    Then only admin accounts register brokers, and a second address for a registered broker id is refused.
    """
    rocketmq_home: Path | None = None
    """Directory of conf/plain_acl.yml and conf/acl/; by default the environment variable ROCKETMQ_HOME."""
    audit_log_path: Path | None = None
    """File of the audit log; by default there is none."""
    audit_log_max_size: Bytes = 64 * 1024 * 1024
    """Size at which the audit log begins a new file."""
    audit_log_max_files: int = 8
    """Number of files of the audit log; the oldest is deleted."""
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"
    """Keys, joined by `;`, that cannot be changed over the network."""

    @property
    def fixed_keys(self) -> set[str]:
        """The keys that only a restart can change."""
        listed = {key.strip() for key in self.config_black_list.split(";")}
        return listed | _FIXED


def from_properties(properties: Mapping[str, str]) -> tuple[NamesrvConfig, list[str]]:
    """Parse a namesrv.conf: return the settings, and Apache's keys in it that have no effect here.

    Raises ConfigError, which names the key, for an invalid value or an unknown key.
    """
    unused = settings.without_effect((NamesrvConfig,), WITHOUT_EFFECT, properties)
    return settings.fill(NamesrvConfig, properties), unused
