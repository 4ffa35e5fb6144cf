"""The hand-formatted response to a pull is what the encoder writes, byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.broker.remoting.pull import encoded, formatted
from rucola.broker.services.results import Fetched, FetchOutcome
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.store.config import GetMessageStatus

offsets = st.integers(-1, (1 << 63) - 1)


@pytest.mark.parametrize("status", list(GetMessageStatus))
@given(
    outcome=st.sampled_from(FetchOutcome),
    opaque=st.integers(-(1 << 31), (1 << 31) - 1),
    broker_id=st.integers(0, (1 << 63) - 1),
    next_offset=offsets,
    min_offset=offsets,
    max_offset=offsets,
    records=st.binary(max_size=300),
)
def test_a_formatted_answer_equals_the_encoded_one(
    status: GetMessageStatus,
    outcome: FetchOutcome,
    opaque: int,
    broker_id: int,
    next_offset: int,
    min_offset: int,
    max_offset: int,
    records: bytes,
) -> None:
    request = RemotingCommand.request(RequestCode.PULL_MESSAGE)
    request.opaque = opaque
    fetched = Fetched(outcome, status.name, broker_id, next_offset, min_offset, max_offset, records)
    assert formatted(request, fetched) == encoded(request, fetched).encode()
