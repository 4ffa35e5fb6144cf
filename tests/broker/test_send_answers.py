"""The formatted responses to sends are what the encoder writes, byte for byte, in C and in Python."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rucola.broker.config import BrokerConfig
from rucola.broker.remoting.send import SendAnswers
from rucola.broker.services.results import Published, StoredSends
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from support.accelerator import assert_same

offsets = st.integers(0, (1 << 63) - 1)
regions = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(["%d", '"', "\\", "\n"])


@given(
    region=regions,
    host=st.sampled_from(["127.0.0.1", "::1"]),
    sends=st.lists(
        st.tuples(
            st.none() | st.integers(-(1 << 31), (1 << 31) - 1),
            st.integers(0, (1 << 31) - 1),
            offsets,
            st.lists(offsets, min_size=1, max_size=3),
        ),
        max_size=4,
    ),
)
def test_formatted_answers_equal_the_encoded_ones(
    region: str, host: str, sends: list[tuple[int | None, int, int, list[int]]]
) -> None:
    address = f"[{host}]" if ":" in host else host
    answers = SendAnswers(BrokerConfig(broker_ip1=address, listen_port=10911, region_id=region))
    expected = b""
    for opaque, queue_id, queue_offset, ids in sends:
        if opaque is not None:
            request = RemotingCommand(RequestCode.SEND_MESSAGE_V2, {}, opaque=opaque)
            expected += answers.encoded(request, Published(queue_id, queue_offset, ids[0], 0, False, ids)).encode()
    counts = [len(ids) for *_, ids in sends]
    queue_ids = [queue_id for _, queue_id, _, ids in sends for _ in ids]
    queue_offsets = [queue_offset for *_, queue_offset, ids in sends for _ in ids]
    stored = StoredSends(counts, queue_ids, queue_offsets, [at for *_, ids in sends for at in ids], 0, ())
    assert assert_same(lambda: answers.formatted([opaque for opaque, *_ in sends], stored)) == expected
