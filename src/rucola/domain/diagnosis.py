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
    clock_ms: int = 0
    """The broker's clock in milliseconds since 1970; 0 if its version does not say."""
    certificate_expires_ms: int = 0
    """End of the validity of its certificate; 0 without TLS."""
    mappings_ratio: float = 0.0
    """Used part of the descriptors and mappings that ConsumeQueues may have."""
