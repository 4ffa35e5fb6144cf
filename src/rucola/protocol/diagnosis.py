"""GET_DIAGNOSIS (20010), Rucola's own: faults that a broker finds in its state."""

from __future__ import annotations

import msgspec

from rucola.protocol.body import Body


class Finding(Body):
    """`reason` is for programs, such as QUEUE_NOT_READ, `fields` are its figures."""

    reason: str = ""
    subject: str = ""
    fields: dict[str, str | int] = msgspec.field(default_factory=dict)


class Diagnosis(Body):
    findings: list[Finding] = msgspec.field(default_factory=list)
