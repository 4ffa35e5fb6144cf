"""The end of a certificate's validity, read from its file.

The standard library can verify certificates but not read one that no peer has sent, so the few fields before the
validity are passed over here (RFC 5280, section 4.1):

    Certificate ::= SEQUENCE { TBSCertificate ::= SEQUENCE { [0] version, serialNumber, signature, issuer,
                               validity ::= SEQUENCE { notBefore, notAfter }, ... }, ... }
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_CERTIFICATE: Final = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17


def expiry_ms(path: Path) -> int:
    """Return when the first certificate of a PEM file ends to be valid, in milliseconds since 1970.

    OSError if it cannot be read, ValueError if it has no certificate.
    """
    found = _CERTIFICATE.search(path.read_text(encoding="ascii", errors="replace"))
    if found is None:
        raise ValueError(f"{path} has no certificate")
    try:
        der = ssl.PEM_cert_to_DER_cert(found[0])
        begin, _ = _content(der, _content(der, 0)[0])
        for _ in range(4 if der[begin] == _VERSION else 3):
            begin = _content(der, begin)[1]
        _, not_after = _content(der, _content(der, begin)[0])
        text, end = _content(der, not_after)
        form = "%y%m%d%H%M%SZ" if der[not_after] == _UTC_TIME else "%Y%m%d%H%M%SZ"
        expires = datetime.strptime(der[text:end].decode("ascii"), form).replace(tzinfo=UTC)
    except (IndexError, ValueError) as error:
        raise ValueError(f"the certificate in {path} cannot be read: {error}") from None
    return round(expires.timestamp() * 1000)


def _content(der: bytes, position: int) -> tuple[int, int]:
    """Return begin and end of the content of the element at a position."""
    length, begin = der[position + 1], position + 2
    if length & 0x80:
        size = length & 0x7F
        length, begin = int.from_bytes(der[begin : begin + size], "big"), begin + size
    return begin, begin + length
