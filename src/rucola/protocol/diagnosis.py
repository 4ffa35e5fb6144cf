"""GET_DIAGNOSIS (20010): what a broker finds wrong with itself. Rucola's own, which Apache's brokers do not support."""

from __future__ import annotations

import msgspec

from rucola.protocol.body import Body


class Finding(Body):
    """A state in which messages wait and nobody gets them.

    `reason` is a word for programs, such as QUEUE_NOT_READ; `subject` names what it is about; `fields` are its figures.
    """

    reason: str = ""
    subject: str = ""
    fields: dict[str, str | int] = msgspec.field(default_factory=dict)


class Diagnosis(Body):
    """The response body of GET_DIAGNOSIS."""

    findings: list[Finding] = msgspec.field(default_factory=list)
