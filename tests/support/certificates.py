"""Certificates of `rucola tls init` for tests, and the settings with which servers and clients use them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization

from rucola import settings
from rucola.cli.certificates import CertificateDirectory
from rucola.remoting.tls import ClientTls, ServerTls
from rucola.remoting.tls_config import TlsConfig, TlsMode, read_tls_file


class Certificates:
    """A directory as `rucola tls init` makes it, for localhost and the loopback addresses."""

    def __init__(self, directory: Path, make: Callable[[Path], object] | None = None) -> None:
        (make or (lambda path: CertificateDirectory(path).create([], 1)))(directory)
        self.directory = directory

    def config(self, mode: TlsMode = TlsMode.enforcing, **changed: Any) -> TlsConfig:
        """The settings in server.properties, with changes."""
        read = settings.fill(TlsConfig, read_tls_file(self.directory / "server.properties"))
        return replace(read, server_mode=mode, **changed)

    def server(self, mode: TlsMode = TlsMode.enforcing, **changed: Any) -> ServerTls:
        return ServerTls(self.config(mode, **changed))

    def client(self, **changed: Any) -> ClientTls:
        """A client that accepts these certificates, without one of its own."""
        return replace(ClientTls(ca=self.directory / "ca.pem"), **changed)

    def client_with_certificate(self) -> ClientTls:
        found = ClientTls.from_file(self.directory / "client.properties")
        assert found is not None
        return found

    def copy(self, directory: Path) -> Certificates:
        """The same certificates in another directory, for a test that changes them."""

        def make(path: Path) -> None:
            shutil.copytree(self.directory, path)
            for file in path.glob("*.properties"):
                file.write_text(file.read_text().replace(str(self.directory), str(path)))

        return Certificates(directory, make)


def encrypt(key: Path, password: bytes) -> None:
    """Encrypt a private key in its file."""
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password),
        )
    )
