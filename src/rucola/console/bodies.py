"""Bodies of messages as text for a page: JSON, text, hexadecimal digits or MessagePack, of limited size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from rucola.presentation import LAYOUT

MAX_BYTES: Final = 128 << 10
MAX_HEX_BYTES: Final = 16 << 10


class ShownBody(NamedTuple):
    form: str
    text: str
    error: str = ""
    """Why the body is not of the form that was asked for."""


def _json(body: bytes) -> str:
    return _indented(msgspec.json.decode(body))


def _msgpack(body: bytes) -> str:
    return _indented(msgspec.msgpack.decode(body))


def _indented(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode()


def _text(body: bytes) -> str:
    return body[:MAX_BYTES].decode("utf-8", "replace")


def _hex(body: bytes) -> str:
    lines = []
    for begin in range(0, min(len(body), MAX_HEX_BYTES), 16):
        part = body[begin : begin + 16]
        shown = "".join(chr(one) if 32 <= one < 127 else "." for one in part)
        lines.append(f"{begin:08x}  {part.hex(' '):<47}  {shown}")
    return "\n".join(lines)


FORMS: Final[dict[str, Callable[[bytes], str]]] = {"json": _json, "text": _text, "hex": _hex, "msgpack": _msgpack}


def is_cut(body: bytes, form: str) -> bool:
    return len(body) > (MAX_HEX_BYTES if form == "hex" else MAX_BYTES)


def shown_body(body: bytes, form: str = "") -> ShownBody:
    """Return a body in a form of FORMS, or in the first that fits."""
    if form in ("json", "msgpack") or (not form and body[:1] in (b"{", b"[")):
        try:
            if len(body) <= MAX_BYTES:
                return ShownBody(form or "json", FORMS[form or "json"](body))
            error = f"more than {MAX_BYTES} bytes"
        except (msgspec.MsgspecError, RecursionError, ValueError) as failure:
            error = str(failure)
        found = shown_body(body, "text" if _is_text(body) else "hex")
        return ShownBody(found.form, found.text, error if form else "")
    form = form if form in FORMS else "text" if _is_text(body) else "hex"
    return ShownBody(form, FORMS[form](body))


def _is_text(body: bytes) -> bool:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character in LAYOUT for character in text)
