"""Ports that other machines reach require TLS and access control, or a configuration that trusts the network."""

from __future__ import annotations

import errno
import ipaddress
import logging
from typing import Final

from rucola.errors import ConfigError, RemotingError

logger = logging.getLogger(__name__)

LOOPBACK: Final = "127.0.0.1"


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_exposure(
    server: str, host: str, *, is_tls_enforced: bool, has_access_control: bool, insecure: bool,
    access_control: str = "aclEnable=true",
) -> None:  # fmt: skip
    """Raise ConfigError if a server, such as "the broker", must not listen on `host`.

    `access_control` says how to get it.
    """
    if is_loopback(host) or (is_tls_enforced and has_access_control):
        return
    if not insecure:
        raise ConfigError(
            f"{server} does not start on {host}, where everyone who reaches it could read and change everything: set "
            f"tls.server.mode=enforcing and {access_control}, or insecure=true if every machine of that network is "
            f"trusted (bindAddress={LOOPBACK} admits only this machine)",
            subject=host,
        )
    _warn(server, host)


def check_metrics_exposure(host: str, *, is_mutual_tls: bool, insecure: bool) -> None:
    """Raise ConfigError if metrics, whose only access control is certificates, must not be served on `host`."""
    if is_loopback(host) or is_mutual_tls:
        return
    if not insecure:
        raise ConfigError(
            f"metricsPromExporterHost={host}: everyone who reaches it could read the metrics: set "
            "tls.server.mode=enforcing and tls.server.need.client.auth=require, or insecure=true if every machine of "
            "that network is trusted",
            subject="metricsPromExporterHost",
        )
    _warn("the metrics endpoint", host)


def _warn(server: str, host: str) -> None:
    logger.warning("insecure=true: %s on %s serves everyone who reaches it", server, host)


def cannot_listen(host: str, port: int, error: OSError | OverflowError, purpose: str = "") -> RemotingError:
    """Return the error of an unusable address; `purpose` is such as " for metrics"."""
    why = getattr(error, "strerror", None) or str(error)
    if getattr(error, "errno", None) == errno.EADDRINUSE:
        why = "another process has this port; stop that one, or choose another port"
    return RemotingError(f"cannot listen on {host}:{port}{purpose}: {why}", subject=f"{host}:{port}")
