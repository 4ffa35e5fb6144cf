"""TlsConfig: TLS settings of a broker, name server or client, by Apache's TlsSystemConfig keys.

Apache has these keys in system properties and a file `tls.properties`. Here they are in broker.conf and namesrv.conf,
which take precedence, or in the file `tls.config.file`, whose relative paths are relative to it.

Corresponds to `TlsSystemConfig` and `TlsMode` of Apache RocketMQ 4.9.8. Deliberate differences: the default mode is
disabled, and a server has no test mode with a certificate that nothing can verify; clients verify the server's
certificate and name by default; an unknown value is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from pathlib import Path

from rucola import settings
from rucola.errors import ConfigError
from rucola.settings import Count, Milliseconds, Secret

_FILE = "tls.config.file"


class TlsMode(Enum):
    """Mode of the ports of a server. The names are Apache's values."""

    disabled = 0
    """Plain text only."""
    permissive = 1
    """TLS and plain text on the same port."""
    enforcing = 2
    """TLS only: a connection in plain text is closed."""


class ClientAuth(Enum):
    """Whether a server asks clients for a certificate. The names are Apache's values."""

    none = 0
    optional = 1
    """A client may have none; one that it shows must be valid."""
    require = 2


@dataclass(slots=True, frozen=True)
class TlsConfig:
    """Certificates and modes of servers and of the connections that they open; see docs/security.md."""

    # Servers

    server_mode: TlsMode = field(default=TlsMode.disabled, metadata={"key": "tls.server.mode"})
    """TLS on all ports of this server. permissive serves TLS and plain text on one port, to migrate clients."""
    config_file: Path | None = field(default=None, metadata={"key": _FILE})
    """File with these settings, Apache's tls.properties. `rucola tls init` writes one."""
    server_cert_path: Path | None = field(default=None, metadata={"key": "tls.server.certPath"})
    """Certificate of the server with its chain, PEM. Replace it at any time: new connections use the new one."""
    server_key_path: Path | None = field(default=None, metadata={"key": "tls.server.keyPath"})
    """Private key of the server, PEM."""
    server_key_password: Secret | None = field(default=None, metadata={"key": "tls.server.keyPassword"})
    """Password of the private key: `file:PATH` or `env:NAME`, or the password itself."""
    server_need_client_auth: ClientAuth = field(
        default=ClientAuth.none, metadata={"key": "tls.server.need.client.auth"}
    )
    """Whether clients need a certificate. Set require for mutual TLS."""
    server_trust_cert_path: Path | None = field(default=None, metadata={"key": "tls.server.trustCertPath"})
    """Certificate authorities of clients, PEM; needed unless tls.server.need.client.auth is none."""
    server_auth_client: bool = field(default=True, metadata={"key": "tls.server.authClient"})
    """Whether certificates of clients are verified. Always true: false is refused with need.client.auth."""
    server_handshake_timeout: Milliseconds = field(
        default=10_000, metadata={"key": "tls.server.handshakeTimeoutMillis"}
    )
    """Time from the connection to the end of the handshake, after which it is closed."""
    server_max_pending_handshakes: Count = field(default=512, metadata={"key": "tls.server.maxPendingHandshakes"})
    """Number of handshakes at a time. More connections wait; the oldest handshake is ended for them."""

    # Connections to other servers: name servers, the master, and of a client all

    enable: bool = field(default=False, metadata={"key": "tls.enable"})
    """Whether this process connects by TLS. Set it if the name servers enforce TLS."""
    client_trust_cert_path: Path | None = field(default=None, metadata={"key": "tls.client.trustCertPath"})
    """Certificate authorities of servers, PEM; by default the system's."""
    client_cert_path: Path | None = field(default=None, metadata={"key": "tls.client.certPath"})
    """Certificate of this client with its chain, PEM, if servers require one."""
    client_key_path: Path | None = field(default=None, metadata={"key": "tls.client.keyPath"})
    """Private key of this client, PEM."""
    client_key_password: Secret | None = field(default=None, metadata={"key": "tls.client.keyPassword"})
    """Password of that key, as tls.server.keyPassword."""
    client_auth_server: bool = field(default=True, metadata={"key": "tls.client.authServer"})
    """Whether the certificates of servers are verified. false is for tests: anyone can answer in a server's place."""
    client_check_hostname: bool = field(default=True, metadata={"key": "tls.client.checkHostname"})
    """Whether a certificate must name the host or address that was connected to. Apache's clients do not check it."""
    test_mode_enable: bool = field(default=False, metadata={"key": "tls.test.mode.enable"})
    """true is the same as tls.client.authServer=false. A server without a certificate refuses it."""

    def __post_init__(self) -> None:
        settings.check(self)

    @property
    def is_enforced(self) -> bool:
        """Whether only TLS is served."""
        return self.server_mode is TlsMode.enforcing

    @property
    def is_mutual(self) -> bool:
        """Whether only clients with a certificate are served."""
        return self.is_enforced and self.server_need_client_auth is ClientAuth.require

    def of_own_client(self) -> TlsConfig:
        """Return settings for a client of a server with these, in the same process."""
        return replace(self, enable=self.enable or self.is_enforced)

    @property
    def verifies_servers(self) -> bool:
        return self.client_auth_server and not self.test_mode_enable


def with_tls_file(properties: Mapping[str, str]) -> dict[str, str]:
    """Add the settings of `tls.config.file`. ConfigError if it cannot be used."""
    if not (name := properties.get(_FILE, "").strip()):
        return dict(properties)
    path = settings.fill(TlsConfig, {_FILE: name}).config_file
    assert path is not None
    return {**read_tls_file(path), **properties}


def read_tls_file(path: Path) -> dict[str, str]:
    """Read a tls.properties, with complete paths. ConfigError names the file."""
    given = settings.read(path)
    try:
        settings.without_effect((TlsConfig,), (), given)
        values = settings.changes(TlsConfig, given)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", subject=path) from None
    directory = path.absolute().parent
    complete = {
        settings.key_of(one): str(directory / values[one.name])
        for one in fields(TlsConfig)
        if isinstance(values.get(one.name), Path)
    }
    return {**given, **complete}
