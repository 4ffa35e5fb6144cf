"""The end of a certificate's validity, and what a server does with an expired one."""

from __future__ import annotations

import datetime
import logging
import re
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from rucola.errors import ConfigError
from rucola.remoting.certificate import expiry_ms
from support.certificates import Certificates
from support.errors import raises

DAY_S = 86_400


def write(path: Path, key_path: Path, days: float) -> None:
    """A certificate for the key that ends to be valid so many days from now."""
    key = serialization.load_pem_private_key(key_path.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x" * 60)])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(end - datetime.timedelta(days=400))
        .not_valid_after(end)
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


@pytest.mark.parametrize("days", [-3, 1, 400, 365 * 60])
def test_the_end_of_the_validity_is_read(tmp_path: Path, days: int) -> None:
    """Up to 2049 it has two digits of the year, then four."""
    made = Certificates(tmp_path / "made")
    path = tmp_path / "made" / "server.pem"
    write(path, tmp_path / "made" / "server.key", days)
    assert expiry_ms(path) / 1000 - time.time() == pytest.approx(days * DAY_S, abs=60)
    assert expiry_ms(made.directory / "ca.pem") / 1000 - time.time() == pytest.approx(3650 * DAY_S, abs=DAY_S)


@pytest.mark.parametrize("text", ["", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"])
def test_a_file_without_a_certificate_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "server.pem"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        expiry_ms(path)


def test_an_expired_certificate_does_not_replace_a_valid_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = Certificates(tmp_path / "made")
    path, key = made.directory / "server.pem", made.directory / "server.key"

    def levels() -> list[int]:
        found = [record.levelno for record in caplog.records if str(path) in record.getMessage()]
        caplog.clear()
        return [level for level in found if level > logging.INFO]

    write(path, key, 100)
    server = made.server()
    assert levels() == []
    write(path, key, 10)
    server.reload()
    assert levels() == [logging.WARNING]
    context, expires_ms = server.context, server.expires_ms
    write(path, key, -1)
    with raises(ConfigError, subject=str(path)):
        server.reload()
    assert (server.context, server.expires_ms) == (context, expires_ms)
    caplog.clear()
    made.server()  # without another one, the broker starts, and says so
    assert levels() == [logging.ERROR]
