"""Challenges: signatures that are valid once, on one connection, for one request code.

Apache's signature (`rucola.acl.signature`) can be replayed. Signatures of version 2, which only Rucola's servers and
clients with `signatureVersion` 2 support, are HMAC-SHA256 over

    "RUCOLA 2"  challenge  number  request code  count of ext fields  name and value of each, by name  body

where a text is its length in 4 bytes and its UTF-8. The challenge is a random text of the server for this connection,
the response to its first request (GET_CHALLENGE, 20100), which alone is signed with the empty challenge. The number is
the ext field `SignatureNumber`; it must grow from request to request. So a request cannot be repeated, on any
connection or server, and clocks do not matter.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, MutableMapping
from struct import Struct
from typing import Final

from rucola.acl.signature import SIGNATURE, SIGNATURE_NUMBER, Signer
from rucola.protocol.codes import RequestCode

MIN_LENGTH: Final = 32
"""Characters of a challenge that a client signs requests for; several connections could have the same shorter one."""

_SIZE: Final = Struct(">I")
_HEAD: Final = Struct(">QiI")
_MAX_DIGITS: Final = 18


class Challenge:
    __slots__ = ("_number", "text")

    def __init__(self, text: str = "") -> None:
        self.text = text
        self._number = 0

    @classmethod
    def random(cls) -> Challenge:
        return cls(secrets.token_hex(MIN_LENGTH // 2))

    def sign(self, signer: Signer, code: int, fields: MutableMapping[str, str], body: bytes) -> None:
        self._number += 1
        fields[SIGNATURE_NUMBER] = str(self._number)
        fields[SIGNATURE] = signer.sign_content(self._content(self._number, code, fields, body))

    def admits(self, signer: Signer, code: int, fields: Mapping[str, str], body: bytes | memoryview) -> bool:
        """Return whether a request is signed for this challenge, and its number greater than all previous ones."""
        digits = fields[SIGNATURE_NUMBER]
        number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS else 0
        content = self._content(number, code, fields, body)
        if not signer.verifies_content(content, fields.get(SIGNATURE, "")) or number <= self._number:
            return False
        if not self.text and code != RequestCode.GET_CHALLENGE:
            return False  # it would be valid on every connection
        self._number = number
        return True

    def _content(self, number: int, code: int, fields: Mapping[str, str], body: bytes | memoryview) -> bytes:
        names = sorted(fields.keys() - {SIGNATURE})
        parts = [b"RUCOLA 2", _text(self.text), _HEAD.pack(number, code, len(names))]
        for name in names:
            parts += _text(name), _text(fields[name])
        return b"".join([*parts, body])


def _text(text: str) -> bytes:
    content = text.encode("utf-8", "surrogatepass")
    return _SIZE.pack(len(content)) + content
