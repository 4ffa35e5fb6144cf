"""The hand-formatted response to a send is what the encoder writes, byte for byte."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rucola.broker.config import BrokerConfig
from rucola.broker.remoting.send import SendAnswers
from rucola.broker.services.results import Published
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand

offsets = st.integers(0, (1 << 63) - 1)
regions = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(["%d", '"', "\\", "\n"])


@given(
    region=regions,
    host=st.sampled_from(["127.0.0.1", "::1"]),
    opaque=st.integers(0, (1 << 31) - 1),
    queue_id=st.integers(0, (1 << 31) - 1),
    queue_offset=offsets,
    physical_offsets=st.lists(offsets, min_size=1, max_size=3),
    is_batch=st.booleans(),
)
def test_a_formatted_answer_equals_the_encoded_one(
    region: str,
    host: str,
    opaque: int,
    queue_id: int,
    queue_offset: int,
    physical_offsets: list[int],
    is_batch: bool,
) -> None:
    address = f"[{host}]" if ":" in host else host
    answers = SendAnswers(BrokerConfig(broker_ip1=address, listen_port=10911, region_id=region))
    request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2)
    request.opaque = opaque
    ids = physical_offsets if is_batch else []
    published = Published(queue_id, queue_offset, physical_offsets[0], 0, False, ids)
    assert answers.formatted(request.opaque, published) == answers.encoded(request, published).encode()
