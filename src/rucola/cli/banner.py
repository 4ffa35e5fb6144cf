"""First lines in a server's log: version, addresses, store, and settings other than the defaults."""

from __future__ import annotations

import dataclasses
import logging
import os
import platform

from rucola import settings, speed
from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig
from rucola.namesrv.config import NamesrvConfig
from rucola.namesrv.server import Namesrv
from rucola.store.config import StoreConfig
from rucola.version import FULL_VERSION

logger = logging.getLogger("rucola")

_DERIVED = {
    "storeHost",
    "brokerIP1",
    "brokerIP2",
    "brokerName",
    "bindAddress",
    "listenPort",
    "haListenPort",
    "grpcServerPort",
}
"""Settings that the other lines show."""


def log_broker(broker: Broker) -> None:
    config, store = broker.config, broker.store_config
    _log_version("broker")
    logger.info(
        "broker %s of cluster %s, id %d, %s, %s: clients at %s (bound to %s), of gRPC at %s, slaves at port %d, "
        "name servers %s",
        config.broker_name, config.broker_cluster_name, config.broker_id, store.broker_role.name,
        store.flush_disk_type.name, broker.address, config.bind_address, broker.grpc_endpoint or "no port",
        config.ha_listen_port, config.namesrv_addr or "none",
    )  # fmt: skip
    logger.info(
        "store %s, CommitLog %s in files of %d bytes, kept for %d h; settings that differ from the defaults: %s",
        store.store_path_root_dir, store.commit_log_directory, store.mapped_file_size_commit_log,
        store.file_reserved_time, _changed((config, BrokerConfig()), (store, StoreConfig())),
    )  # fmt: skip
    if store.mapped_file_size_commit_log < store.max_message_size:
        logger.warning(
            "messages larger than a file of the CommitLog are refused: mappedFileSizeCommitLog=%d, maxMessageSize=%d",
            store.mapped_file_size_commit_log, store.max_message_size,
        )  # fmt: skip


def log_namesrv(server: Namesrv, config: NamesrvConfig) -> None:
    _log_version("name server")
    logger.info(
        "name server at %s:%d, key-value table %s; settings that differ from the defaults: %s",
        server.host, server.port, config.kv_config_path or "in memory only", _changed((config, NamesrvConfig())),
    )  # fmt: skip


def _log_version(kind: str) -> None:
    logger.info(
        "Rucola %s %s, %s, Python %s, process %d",
        FULL_VERSION, kind, speed.description(), platform.python_version(), os.getpid(),
    )  # fmt: skip


def _changed(*pairs: tuple[object, object]) -> str:
    changed: dict[str, str] = {}
    for config, defaults in pairs:
        assert dataclasses.is_dataclass(config)
        usual = settings.to_properties(defaults)
        changed |= {
            key: value
            for key, value in settings.to_properties(config).items()
            if usual.get(key) != value and key not in _DERIVED
        }
    return ", ".join(f"{key}={value}" for key, value in changed.items()) or "none"
