"""The hand-formatted response to a receive by POP is what the encoder writes, byte for byte."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rucola.broker.remoting.pop import encoded, formatted
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.pop import PopMessageResponseHeader

numbers = st.integers(-1, (1 << 63) - 1)


@given(
    opaque=st.integers(-(1 << 31), (1 << 31) - 1),
    times=st.tuples(numbers, numbers),
    rest=numbers,
    infos=st.tuples(st.from_regex("[0-9 ,;]*", fullmatch=True), st.from_regex("[0-9 ,;]*", fullmatch=True)),
    counts=st.none() | st.from_regex("[01] qo[0-9]+%[0-9]+ [0-9]+", fullmatch=True),
    records=st.binary(max_size=300),
)
def test_a_formatted_answer_equals_the_encoded_one(
    opaque: int, times: tuple[int, int], rest: int, infos: tuple[str, str], counts: str | None, records: bytes
) -> None:
    request = RemotingCommand.request(RequestCode.POP_MESSAGE)
    request.opaque = opaque
    header = PopMessageResponseHeader(
        pop_time=times[0],
        invisible_time=times[1],
        revive_qid=999,
        rest_num=rest,
        start_offset_info=infos[0],
        msg_offset_info=infos[1],
        order_count_info=counts,
    )
    assert formatted(request, header, records) == encoded(request, header, records).encode()
