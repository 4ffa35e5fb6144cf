"""NamesrvConfig: what a name server is told, by the keys of Apache's namesrv.conf.

Answers to `NamesrvConfig` of Apache RocketMQ 4.9.8; keys of its thread pools and buffers mean nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class NamesrvConfig:
    """Where the name server listens and what it keeps.

    `kv_config_path` is the file of the key-value table, `config_store_path` the file that a changed configuration is
    written to; where one is empty, nothing is kept. `order_message_enable` adds the order configuration to routes.
    A connection on which nothing comes or goes for `server_channel_max_idle_time_seconds` is closed; none for 0.
    Keys in `config_black_list` (joined by `;`) cannot be changed over the network.
    """

    bind_address: str = "0.0.0.0"
    listen_port: int = 9876
    kv_config_path: str = ""
    config_store_path: str = ""
    order_message_enable: bool = False
    server_channel_max_idle_time_seconds: int = 120
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"

    @property
    def fixed_keys(self) -> set[str]:
        """The keys that only a restart changes."""
        listed = {key.strip() for key in self.config_black_list.split(";")}
        return listed | {"configBlackList", "configStorePath", "kvConfigPath", "bindAddress", "listenPort"}
