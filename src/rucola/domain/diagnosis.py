"""Findings: faults that a broker finds in its state, and what tools observe about groups."""

from __future__ import annotations

from typing import Any

import msgspec


class Finding(msgspec.Struct, rename="camel"):
    """`reason` is for programs, such as QUEUE_NOT_READ, `fields` are its figures."""

    reason: str = ""
    subject: str = ""
    fields: dict[str, Any] = msgspec.field(default_factory=dict)


class Diagnosis(msgspec.Struct, rename="camel"):
    findings: list[Finding] = msgspec.field(default_factory=list)
