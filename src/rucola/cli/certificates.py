"""Certificates to try TLS: an authority, a server and a client. Needs the extra `security`.

    ca.pem ca.key              the certificate authority; ca.key signs, and should be kept off the servers
    server.pem server.key      for brokers and name servers, with their names and addresses
    client.pem client.key      for clients, if servers require certificates
    server.properties          settings of a broker or name server, also of Apache's
    client.properties          settings of clients, also of Apache's

Keys are of the curve P-256: a handshake costs a tenth of RSA's. Files are readable by their owner only.
"""

from __future__ import annotations

import datetime
import ipaddress
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rucola.errors import ConfigError
from rucola.files import replacing

AUTHORITY_DAYS: Final = 3650
SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH

_SERVER_PROPERTIES: Final = """\
# Settings of a broker or a name server: use this file as its configuration, or name it there as tls.config.file.
tls.server.mode=enforcing
tls.server.certPath={directory}/server.pem
tls.server.keyPath={directory}/server.key
# require: only clients with a certificate of this authority may connect (mutual TLS).
tls.server.need.client.auth=none
tls.server.authClient=true
tls.server.trustCertPath={directory}/ca.pem
"""
_CLIENT_PROPERTIES: Final = """\
# Connections to other servers.
tls.enable=true
tls.test.mode.enable=false
tls.client.authServer=true
tls.client.trustCertPath={directory}/ca.pem
tls.client.certPath={directory}/client.pem
tls.client.keyPath={directory}/client.key
"""


class CertificateDirectory:
    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()

    def create(self, hosts: Iterable[str], days: int) -> list[str]:
        """Make an authority, certificates and settings; return the names in the server's certificate.

        ConfigError if there is an authority already: its certificates would no longer be accepted.
        """
        if (self.directory / "ca.key").exists():
            raise ConfigError(f"{self.directory} has an authority already; `rucola tls renew` makes new certificates")
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("Rucola certificate authority")
        builder = (
            _builder(name, key.public_key(), AUTHORITY_DAYS)
            .issuer_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
        )
        self._write("ca.key", _encoded(key))
        self._write("ca.pem", builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        for file, text in (
            ("server.properties", _SERVER_PROPERTIES + _CLIENT_PROPERTIES),
            ("client.properties", _CLIENT_PROPERTIES),
        ):
            self._write(file, text.format(directory=self.directory).encode())
        return self._issue([*_own_names(), *hosts], days)

    def renew(self, hosts: Iterable[str], days: int) -> list[str]:
        """Make new certificates of the same authority; return the old names and `hosts`."""
        try:
            old = x509.load_pem_x509_certificate((self.directory / "server.pem").read_bytes())
        except (OSError, ValueError):
            raise ConfigError(f"{self.directory} has no server.pem; `rucola tls init` makes certificates") from None
        names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return self._issue([*(str(name.value) for name in names), *hosts], days)

    def _issue(self, hosts: Iterable[str], days: int) -> list[str]:
        authority, signing_key = self._authority()
        names = list(dict.fromkeys(hosts))
        for file, title, purpose, alternatives in (
            ("server", "Rucola server", SERVER, [_alternative(name) for name in names]),
            ("client", "Rucola client", CLIENT, []),
        ):
            key = ec.generate_private_key(ec.SECP256R1())
            builder = (
                _builder(_name(title), key.public_key(), days)
                .issuer_name(authority.subject)
                .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
                .add_extension(_key_usage(signs_certificates=False), critical=True)
                .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
                .add_extension(
                    x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False
                )
            )
            if alternatives:
                builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            self._write(f"{file}.key", _encoded(key))
            certificate = builder.sign(signing_key, hashes.SHA256())
            self._write(f"{file}.pem", certificate.public_bytes(serialization.Encoding.PEM))
        return names

    def _authority(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        try:
            certificate = x509.load_pem_x509_certificate((self.directory / "ca.pem").read_bytes())
            key = serialization.load_pem_private_key((self.directory / "ca.key").read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"the authority in {self.directory} cannot be read: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigError(f"{self.directory / 'ca.key'} is no key that `rucola tls init` made")
        return certificate, key

    def _write(self, name: str, content: bytes) -> None:
        """Replace a file atomically: a server sees either the old or the new one."""
        with replacing(self.directory / name) as file:
            file.write(content)


def _own_names() -> list[str]:
    return ["localhost", "127.0.0.1", "::1", socket.gethostname()]


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise ConfigError(f"{host!r} is neither a host name nor an address; write names in ASCII") from None


def _name(title: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, title)])


def _builder(subject: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # Accept a clock that is slightly slow.
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _encoded(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
