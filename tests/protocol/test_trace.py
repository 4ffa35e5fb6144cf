"""Message traces: Apache's layout, and entries of old and other clients."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.protocol.trace import (
    ConsumeReturnType,
    EndTransaction,
    MessageType,
    Pub,
    SubAfter,
    SubBefore,
    Trace,
    decode,
    encode,
)

PUB = Pub(
    timestamp=1625848452706,
    region_id="DefaultRegion",
    group="orders",
    topic="Orders",
    msg_id="C0A80107126755B4AAC2000100A30000",
    tags="food",
    keys="order-1 order-2",
    store_host="127.0.0.1:10911",
    body_length=26,
    cost_ms=245,
    message_type=MessageType.DELAY,
    offset_msg_id="7F00000100002A9F0000000000000000",
    success=True,
)
BEFORE = SubBefore(
    timestamp=1625848452722, region_id="DefaultRegion", group="kitchen", request_id="R", msg_id="M", retry_times=2,
    keys="k",
)  # fmt: skip
AFTER = SubAfter(
    request_id="R", msg_id="M", cost_ms=7, success=False, keys="k", context_code=ConsumeReturnType.EXCEPTION,
    timestamp=1625848452729, group="kitchen",
)  # fmt: skip
END = EndTransaction(
    timestamp=1625848452722, region_id="DefaultRegion", group="orders", topic="Orders", msg_id="M", tags="food",
    keys="k", store_host="127.0.0.1:10911", message_type=MessageType.TRANSACTION_COMMIT, transaction_id="T",
    transaction_state="COMMIT_MESSAGE", from_transaction_check=False,
)  # fmt: skip

LAYOUTS = [
    (
        PUB,
        "Pub|1625848452706|DefaultRegion|orders|Orders|C0A80107126755B4AAC2000100A30000|food|order-1 order-2|"
        "127.0.0.1:10911|26|245|3|7F00000100002A9F0000000000000000|true",
    ),
    (BEFORE, "SubBefore|1625848452722|DefaultRegion|kitchen|R|M|2|k"),
    (AFTER, "SubAfter|R|M|7|false|k|2|1625848452729|kitchen"),
    (
        END,
        "EndTransaction|1625848452722|DefaultRegion|orders|Orders|M|food|k|127.0.0.1:10911|2|T|COMMIT_MESSAGE|false",
    ),
]


@pytest.mark.parametrize(("trace", "layout"), LAYOUTS)
def test_a_trace_has_apaches_layout(trace: Trace, layout: str) -> None:
    text = layout.replace("|", "\x01") + "\x02"
    assert encode(trace) == text
    assert decode(text) == [trace]


def test_any_number_of_entries_round_trips() -> None:
    traces = [trace for trace, _ in LAYOUTS]
    assert decode("".join(map(encode, traces))) == traces
    assert decode("") == []


def test_missing_fields_are_written_as_null() -> None:
    bare = SubBefore(timestamp=1, region_id=None, group="g", request_id="R", msg_id="M", retry_times=0, keys=None)
    assert encode(bare) == "\x01".join(("SubBefore", "1", "null", "g", "R", "M", "0", "null")) + "\x02"
    assert decode(encode(bare)) == [bare]


def test_entries_of_older_and_newer_clients_are_decoded() -> None:
    """Without offsetMsgId, with the client's host, a SubAfter of Alibaba's cloud, and one without contextCode."""
    fields = encode(PUB).rstrip("\x02").split("\x01")
    (old,) = decode("\x01".join([*fields[:12], "true"]))
    assert isinstance(old, Pub)
    assert (old.offset_msg_id, old.success) == (None, True)
    assert decode("\x01".join([*fields, "192.0.2.1"])) == [PUB]
    (short,) = decode("\x01".join(("SubAfter", "R", "M", "7", "true", "k")))
    assert short == SubAfter(request_id="R", msg_id="M", cost_ms=7, success=True, keys="k")
    (cloud,) = decode("\x01".join(("SubAfter", "R", "M", "7", "true", "k", "4", "")))
    assert isinstance(cloud, SubAfter)
    assert (cloud.context_code, cloud.timestamp) == (ConsumeReturnType.FAILED, 0)


@given(st.text(alphabet="Pub\x01\x02SubBefore1-null ", max_size=80))
def test_unreadable_entries_are_skipped(text: str) -> None:
    entry = encode(AFTER)
    assert decode(f"{text}\x02{entry}")[-1] == AFTER
