"""Exposure of a port: on the loopback address only, or with TLS and access control.

A port that other machines reach is open to all of them: every client of a broker without access control reads and
writes all messages, and without TLS so does every machine on the way. Therefore a server refuses to start like that,
unless its configuration declares the network as trusted.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
from typing import Final

from rucola.errors import ConfigError, RemotingError

logger = logging.getLogger(__name__)

LOOPBACK: Final = "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Return whether a server on this address is reached from its own machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_exposure(server: str, host: str, *, is_tls_enforced: bool, has_access_control: bool, insecure: bool) -> None:
    """Raise ConfigError if a server, such as "the broker", must not listen on `host`."""
    if is_loopback(host) or (is_tls_enforced and has_access_control):
        return
    if not insecure:
        raise ConfigError(
            f"{server} does not start on {host}, where everyone who reaches it could read and change everything: set "
            "tls.server.mode=enforcing and aclEnable=true, or insecure=true if every machine of that network is "
            f"trusted (bindAddress={LOOPBACK} admits only this machine)"
        )
    _warn(server, host)


def check_metrics_exposure(host: str, *, is_mutual_tls: bool, insecure: bool) -> None:
    """Raise ConfigError if metrics must not be served on `host`.

    They have no access control but certificates.
    """
    if is_loopback(host) or is_mutual_tls:
        return
    if not insecure:
        raise ConfigError(
            f"metricsPromExporterHost={host}: everyone who reaches it could read the metrics: set "
            "tls.server.mode=enforcing and tls.server.need.client.auth=require, or insecure=true if every machine of "
            "that network is trusted"
        )
    _warn("the metrics endpoint", host)


def _warn(server: str, host: str) -> None:
    logger.warning("insecure=true: %s on %s serves everyone who reaches it", server, host)


def cannot_listen(host: str, port: int, error: OSError | OverflowError, purpose: str = "") -> RemotingError:
    """Return the error for an address on which a server cannot listen.

    `purpose` is such as " for metrics".
    """
    why = getattr(error, "strerror", None) or str(error)
    if getattr(error, "errno", None) == errno.EADDRINUSE:
        why = "another process has this port; stop that one, or choose another port"
    return RemotingError(f"cannot listen on {host}:{port}{purpose}: {why}")
