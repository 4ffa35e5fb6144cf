"""TLS contexts of servers and clients, which follow their certificate files.

New connections load changed files, at most once per `CHECK_INTERVAL_S`; SIGHUP loads them at once. If the new files
cannot be used, for instance because the key is written after the certificate, the last good ones stay in use and the
log has the reason. Open connections keep their certificate. TLS 1.2 is the oldest version. Renegotiation, expensive for
a server, is refused. Error texts name files and settings, never their content.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

from rucola import settings
from rucola.errors import ConfigError
from rucola.outages import Outages
from rucola.remoting.certificate import expiry_ms
from rucola.remoting.tls_config import ClientAuth, TlsConfig, TlsMode, read_tls_file
from rucola.settings import Secret

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 1.0
EXPIRY_WARNING_MS: Final = 30 * 86_400_000
"""Remaining validity of a certificate below which it is named in the log."""

_CERTIFICATES: Final = "TLS certificates"

Versions: TypeAlias = "tuple[tuple[int, int, int] | None, ...]"
"""Time, size and inode of each file, None for a missing one."""


class FollowedContext:
    """An SSLContext that is built again when its files change. ConfigError if it cannot be built first."""

    def __init__(self, build: Callable[[], ssl.SSLContext], files: Sequence[Path]) -> None:
        self._build = build
        self._files = files
        self._outages = Outages(logger, level=logging.ERROR)
        self._versions = self._look()
        self._context = build()
        self._checked_s = time.monotonic()

    def current(self) -> ssl.SSLContext:
        """Return the context for new connections: of the current files, or the last good one."""
        if time.monotonic() - self._checked_s >= CHECK_INTERVAL_S and self._look() != self._versions:
            try:
                self.reload()
            except ConfigError as error:
                self._outages.failed(_CERTIFICATES, f"the ones before stay in use: {error}")
        return self._context

    def reload(self) -> None:
        """Build the context now. On ConfigError the last good one stays in use."""
        self._checked_s = time.monotonic()
        versions = self._look()  # before they are read: the next check sees a change during the build
        self._context = self._build()
        if versions != self._versions:
            self._versions = versions
            logger.info("%s loaded: %s", _CERTIFICATES, ", ".join(map(str, self._files)))
        self._outages.succeeded(_CERTIFICATES)

    def _look(self) -> Versions:
        return tuple(_version(path) for path in self._files)


class ServerTls:
    """TLS of a server's listeners. ConfigError names the missing or unusable setting."""

    def __init__(self, config: TlsConfig) -> None:
        _check_server(config)
        self.mode = config.server_mode
        self.handshake_timeout_s = config.server_handshake_timeout / 1000
        self.max_pending_handshakes = config.server_max_pending_handshakes
        self.expires_ms = 0
        """The end of the certificate's validity in milliseconds since 1970; 0 if it cannot be read."""
        self._config = config
        files = [config.server_cert_path, config.server_key_path, config.server_trust_cert_path]
        self._followed = FollowedContext(self._build, [path for path in files if path is not None])

    @classmethod
    def of(cls, config: TlsConfig) -> ServerTls | None:
        """Return the TLS of a server, None if tls.server.mode is disabled."""
        return None if config.server_mode is TlsMode.disabled else cls(config)

    @property
    def context(self) -> ssl.SSLContext:
        return self._followed.current()

    def _build(self) -> ssl.SSLContext:
        context, path, now_ms = _server_context(self._config), self._config.server_cert_path, time.time() * 1000
        assert path is not None
        try:
            expires_ms = expiry_ms(path)
        except (OSError, ValueError):
            expires_ms = 0  # OpenSSL reads more forms, such as one with text before
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(expires_ms / 1000))
        if 0 < expires_ms <= now_ms:
            if self.expires_ms > now_ms:
                raise ConfigError(f"tls.server.certPath: the certificate in {path} expired at {when}", subject=path)
            logger.error("the certificate in %s expired at %s: clients that verify it cannot connect", path, when)
        elif 0 < expires_ms <= now_ms + EXPIRY_WARNING_MS:
            logger.warning("the certificate in %s expires at %s: renew it, and send SIGHUP", path, when)
        self.expires_ms = expires_ms
        return context

    def reload(self) -> None:
        """Load the certificates again. On ConfigError the last good ones stay in use."""
        self._followed.reload()


@dataclass(frozen=True, slots=True)
class ClientTls:
    """TLS settings of a client. All files are PEM.

    By default it verifies certificates, with the system's authorities, and names. `check_hostname=False` accepts any
    name in a valid certificate. `verify=False` accepts any certificate, so that anyone on the way can read and change
    messages: for tests, and the log warns.
    """

    VARIABLE: ClassVar[str] = "ROCKETMQ_TLS_CONFIG_FILE"
    """The environment variable that names a client's tls.properties."""

    ca: Path | str | None = None
    """Certificate authorities of servers."""
    certificate: Path | str | None = None
    """Certificate of this client with its chain, if servers require one."""
    key: Path | str | None = None
    key_password: Secret | str | None = None
    """"file:PATH", "env:NAME" or the password itself, which `repr` does not show."""
    check_hostname: bool = True
    verify: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.key_password, str):
            object.__setattr__(self, "key_password", Secret(self.key_password))

    @classmethod
    def of(cls, config: TlsConfig) -> ClientTls | None:
        if not config.enable:
            return None
        return cls(
            config.client_trust_cert_path,
            config.client_cert_path,
            config.client_key_path,
            config.client_key_password,
            config.client_check_hostname,
            config.verifies_servers,
        )

    @classmethod
    def from_file(cls, path: Path | str) -> ClientTls | None:
        """Read Apache's tls.properties; `tls.enable` defaults to true. ConfigError."""
        return cls.of(settings.fill(TlsConfig, {"tls.enable": "true", **read_tls_file(Path(path))}))

    @classmethod
    def from_environment(cls) -> ClientTls | None:
        """Read the file of ROCKETMQ_TLS_CONFIG_FILE; None, for plain text, without it. ConfigError."""
        name = os.environ.get(cls.VARIABLE)
        return cls.from_file(name) if name else None

    def follow(self) -> FollowedContext:
        """Return the context of these files. ConfigError if they cannot be used."""
        files = [Path(name) for name in (self.ca, self.certificate, self.key) if name is not None]
        followed = FollowedContext(self._context, files)
        if not self.verify:
            logger.warning("certificates of servers are not verified: anyone on the network can answer in their place")
        return followed

    def _context(self) -> ssl.SSLContext:
        context = _new_context(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.check_hostname and self.verify
        if not self.verify:
            context.verify_mode = ssl.CERT_NONE
        elif self.ca is None:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        else:
            _load_authorities(context, Path(self.ca), "tls.client.trustCertPath")
        if self.certificate is not None:
            key = None if self.key is None else Path(self.key)
            assert not isinstance(self.key_password, str)
            _load_certificate(context, Path(self.certificate), key, self.key_password, "tls.client")
        elif self.key is not None:
            raise ConfigError(
                "tls.client.keyPath is set without tls.client.certPath, the certificate of that key",
                subject="tls.client.keyPath",
            )
        return context


def why_refused(error: ssl.SSLError) -> str:
    """Return the reason of a failed handshake, with advice."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not accepted: {error.verify_message.rstrip('.')} (tls.client.trustCertPath has the "
            "authorities, tls.client.checkHostname whether names count)"
        )
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "wrong version number" in reason or "packet length too long" in reason:
        return "it does not speak TLS: set tls.server.mode there, or tls.enable=false here"
    if "certificate required" in reason:
        return "it requires a client certificate: set tls.client.certPath and tls.client.keyPath"
    return f"the TLS handshake failed: {reason}"


def subject_of(certificate: Mapping[str, Any] | None) -> str:
    """Return the subject in `SSLObject.getpeercert`, as in RFC 4514 (CN=webshop,O=Example); empty for none."""
    names: Any = (certificate or {}).get("subject", ())
    pairs = [[f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in name] for name in reversed(names)]
    return ",".join(map("+".join, pairs))


_SHORT: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
"""RFC 4514 names by OpenSSL's."""


def hint_of_silence(transport: asyncio.BaseTransport) -> str:
    """Return advice for a client whose server closed without sending anything."""
    if transport.get_extra_info("ssl_object") is None:
        needed = "pass tls= or set ROCKETMQ_TLS_CONFIG_FILE (a broker: tls.enable)"
        return f"; it sent nothing: if it enforces TLS, {needed}"
    return "; it sent nothing: if it requires certificates, set tls.client.certPath to one that it accepts"


def _escaped(value: str) -> str:
    text = re.sub(r'[\\",+;<>=]', r"\\\g<0>", value)
    if text.startswith(("#", " ")):
        text = "\\" + text
    if value.endswith(" ") and len(value) > 1:
        text = text[:-1] + "\\ "
    return "".join(
        char if char.isprintable() else "".join(f"\\{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))
        for char in text
    )


def _check_server(config: TlsConfig) -> None:
    if config.test_mode_enable:
        raise ConfigError(
            "tls.test.mode.enable=true: there is no built-in certificate, which clients could not verify anyway; "
            "`rucola tls init DIR` makes some for a first try",
            subject="tls.test.mode.enable",
        )
    for key, path in (
        ("tls.server.certPath", config.server_cert_path),
        ("tls.server.keyPath", config.server_key_path),
    ):
        if path is None:
            raise ConfigError(
                f"tls.server.mode={config.server_mode.name} needs {key}; `rucola tls init DIR` makes certificates",
                subject=key,
            )
    if config.server_need_client_auth is not ClientAuth.none:
        need = f"tls.server.need.client.auth={config.server_need_client_auth.name}"
        if config.server_trust_cert_path is None:
            raise ConfigError(
                f"{need} needs tls.server.trustCertPath, the certificate authorities of clients",
                subject="tls.server.trustCertPath",
            )
        if not config.server_auth_client:
            raise ConfigError(
                f"{need} with tls.server.authClient=false would accept any certificate; remove the latter",
                subject="tls.server.authClient",
            )
    for key, value in (
        ("tls.server.handshakeTimeoutMillis", config.server_handshake_timeout),
        ("tls.server.maxPendingHandshakes", config.server_max_pending_handshakes),
    ):
        if value < 1:
            raise ConfigError(f"{key}={value}: expected 1 or more", subject=key)


def _server_context(config: TlsConfig) -> ssl.SSLContext:
    assert config.server_cert_path is not None
    context = _new_context(ssl.PROTOCOL_TLS_SERVER)
    _load_certificate(
        context, config.server_cert_path, config.server_key_path, config.server_key_password, "tls.server"
    )
    if config.server_need_client_auth is not ClientAuth.none:
        assert config.server_trust_cert_path is not None
        _load_authorities(context, config.server_trust_cert_path, "tls.server.trustCertPath")
        is_required = config.server_need_client_auth is ClientAuth.require
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    context.set_alpn_protocols(["h2"])  # clients of gRPC insist on it; others name no protocol
    return context


def _new_context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Otherwise a peer could have new keys computed repeatedly.
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def _load_authorities(context: ssl.SSLContext, path: Path, setting: str) -> None:
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ConfigError(
            f"{setting}: {path} has no certificates in PEM: {error.reason or error}", subject=setting
        ) from None
    except OSError as error:
        raise ConfigError(f"{setting}: cannot read {path}: {error.strerror}", subject=setting) from None


def _load_certificate(
    context: ssl.SSLContext, certificate: Path, key: Path | None, password: Secret | None, prefix: str
) -> None:
    """`key` defaults to the certificate's file; `prefix` starts the settings' names."""

    def reveal() -> str:
        if password is None:  # otherwise OpenSSL would prompt on the terminal
            raise ConfigError(
                f"{prefix}.keyPath: {key or certificate} is encrypted; set {prefix}.keyPassword",
                subject=f"{prefix}.keyPassword",
            )
        return password.reveal()

    for setting, path in ((f"{prefix}.certPath", certificate), (f"{prefix}.keyPath", key)):
        if path is not None and not os.access(path, os.R_OK):
            why = "permission denied" if path.exists() else "there is no such file"
            raise ConfigError(f"{setting}: cannot read {path}: {why}", subject=setting)
    try:
        context.load_cert_chain(certificate, key, reveal)
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        raise ConfigError(
            f"{prefix}.certPath, {prefix}.keyPath: {certificate} and {key or certificate} are no certificate in PEM "
            f"with its key, or {prefix}.keyPassword is wrong: {reason}",
            subject=f"{prefix}.keyPath",
        ) from None
    except OSError as error:
        raise ConfigError(f"{prefix}.certPath, {prefix}.keyPath: cannot be read: {error.strerror}") from None
    if key is not None and key.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
        logger.warning("%s.keyPath: every user of this machine can read %s; `chmod 600 %s` mends it", prefix, key, key)


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
