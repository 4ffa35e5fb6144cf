"""Challenges: signatures that are valid once, on one connection, for one request code.

Apache's signature (`rucola.acl.signature`) covers neither the request code nor anything that is new in each request.
Signatures of version 2, which only Rucola's servers know and only clients with `signatureVersion` 2 make, are
HMAC-SHA256 over

    "RUCOLA 2"  challenge  number  request code  count of ext fields  name and value of each, by name  body

where a text is its length in 4 bytes and its UTF-8. The challenge is a random text that the server made for this
connection, on its first request (GET_CHALLENGE, 20100). The number is the ext field `SignatureNumber`; it grows from
request to request, and one that does not is refused. So a request can neither be repeated on its connection nor be sent
on another one, or to another server. There is no window of time in which it can, and nothing to remember but the
challenge and a number for each connection; clocks do not matter.

GET_CHALLENGE itself is signed with the empty challenge. Who repeats it gets a challenge, and cannot sign with it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, MutableMapping
from struct import Struct
from typing import Final

from rucola.acl.signature import SIGNATURE, SIGNATURE_NUMBER, Signer

_SIZE: Final = Struct(">I")
_HEAD: Final = Struct(">QiI")
_MAX_DIGITS: Final = 18


class Challenge:
    """What the requests of one connection are signed with, and the number of the latest one."""

    __slots__ = ("_number", "text")

    def __init__(self, text: str = "") -> None:
        self.text = text
        self._number = 0

    @classmethod
    def random(cls) -> Challenge:
        """Return a challenge that nobody can foresee."""
        return cls(secrets.token_hex(16))

    def sign(self, signer: Signer, code: int, fields: MutableMapping[str, str], body: bytes) -> None:
        """Add number and signature to the ext fields of the next request."""
        self._number += 1
        fields[SIGNATURE_NUMBER] = str(self._number)
        fields[SIGNATURE] = signer.sign_content(self._content(self._number, code, fields, body))

    def admits(self, signer: Signer, code: int, fields: Mapping[str, str], body: bytes) -> bool:
        """Tell whether a request is signed, and its number greater than all before it."""
        digits = fields[SIGNATURE_NUMBER]
        number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS else 0
        content = self._content(number, code, fields, body)
        if not signer.verifies_content(content, fields.get(SIGNATURE, "")) or number <= self._number:
            return False
        self._number = number
        return True

    def _content(self, number: int, code: int, fields: Mapping[str, str], body: bytes) -> bytes:
        names = sorted(fields.keys() - {SIGNATURE})
        parts = [b"RUCOLA 2", _text(self.text), _HEAD.pack(number, code, len(names))]
        for name in names:
            parts += _text(name), _text(fields[name])
        return b"".join([*parts, body])


def _text(text: str) -> bytes:
    content = text.encode("utf-8", "surrogatepass")
    return _SIZE.pack(len(content)) + content
