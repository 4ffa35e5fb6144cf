"""Diagnosis: faults that a broker finds in its state."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, rename="camel"):
    """`reason` is for programs, such as QUEUE_NOT_READ, `fields` are its figures."""

    reason: str = ""
    subject: str = ""
    fields: dict[str, str | int] = msgspec.field(default_factory=dict)


class Diagnosis(msgspec.Struct, rename="camel"):
    findings: list[Finding] = msgspec.field(default_factory=list)
