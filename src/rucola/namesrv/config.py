"""Settings of a name server, by the keys of Apache's namesrv.conf.

Corresponds to `NamesrvConfig` of Apache RocketMQ 4.9.8; keys of its thread pools and buffers have no effect here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class NamesrvConfig:
    """Where the name server listens and what it stores."""

    bind_address: str = "0.0.0.0"
    listen_port: int = 9876
    kv_config_path: str = ""
    """The file of the key-value table; if empty, the table is kept in memory only."""
    config_store_path: str = ""
    """The file that a changed configuration is written to; if empty, changes last until the name server stops."""
    order_message_enable: bool = False
    """Whether routes include the order configuration of their topic."""
    server_channel_max_idle_time_seconds: int = 120
    """After how long an idle connection is closed; 0 never closes one."""
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"
    """Keys, joined by `;`, that cannot be changed over the network."""

    @property
    def fixed_keys(self) -> set[str]:
        """The keys that only a restart can change."""
        listed = {key.strip() for key in self.config_black_list.split(";")}
        return listed | {"configBlackList", "configStorePath", "kvConfigPath", "bindAddress", "listenPort"}
