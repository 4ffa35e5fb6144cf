"""ConnectionOptions: how a client reaches a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from rucola.acl.credentials import Credentials, default_credentials
from rucola.errors import ConfigError
from rucola.name_server_addresses import default_name_servers
from rucola.remoting.tls import ClientTls


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How a client reaches a cluster: name servers, TLS and credentials.

    Every client accepts it in place of the addresses of the name servers:

        cluster = ConnectionOptions("10.0.0.1:9876;10.0.0.2:9876", tls=ClientTls("ca.pem"))
        producer, consumer = Producer("orders", cluster), PushConsumer("kitchen", cluster)

    What is None comes from the environment when a client is made.
    """

    namesrv: str | None = None
    """The name servers, "host:port;host:port"; by default see `rucola.name_server_addresses`."""
    tls: ClientTls | None = None
    """TLS; by default as in the file that ROCKETMQ_TLS_CONFIG_FILE names, and plain text without that variable."""
    credentials: Credentials | None = None
    """The keys that sign requests; by default see `rucola.acl.credentials`."""

    def __post_init__(self) -> None:
        expected = (
            ("namesrv", self.namesrv, str, "'host:9876;host:9876'"),
            ("tls", self.tls, ClientTls, "ClientTls(ca=...)"),
            ("credentials", self.credentials, Credentials, "Credentials(access_key, secret_key)"),
        )
        for name, value, kind, example in expected:
            if value is not None and not isinstance(value, kind):
                raise ConfigError(f"{name}= is of type {type(value).__name__}: write {name}={example}", subject=name)

    @classmethod
    def of(
        cls, namesrv: str | ConnectionOptions | None, tls: ClientTls | None, credentials: Credentials | None
    ) -> ConnectionOptions:
        """Return the options of a client's keyword parameters. ConfigError if they state some twice."""
        if not isinstance(namesrv, ConnectionOptions):
            return cls(namesrv, tls, credentials)
        if tls is not None or credentials is not None:
            raise ConfigError("tls= and credentials= are those of the ConnectionOptions: pass them there")
        return namesrv

    def complete(self) -> ConnectionOptions:
        """Return the options, completed from the environment. ConfigError."""
        return ConnectionOptions(
            default_name_servers() if self.namesrv is None else self.namesrv,
            self.tls or ClientTls.from_environment(),
            self.credentials or default_credentials(),
        )
