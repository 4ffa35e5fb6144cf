"""Limits of a broker: what exceeds one is refused by an error that names its key, and holds nothing else up."""

from __future__ import annotations

from pathlib import Path

import pytest

from rucola.protocol.codes import RequestCode, ResponseCode
from support.broker_peer import broker_peer


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("maxMessageSize=-1", "maxMessageSize=-1: expected 1 to 16777216 bytes"),
        ("brokerPermission=0", "brokerPermission=0: expected 2, 4 or 6"),
        (
            f"maxTransferBytesOnMessageInMemory={2**40}",
            f"maxTransferBytesOnMessageInMemory={2**40}: expected 1 to 8388608 bytes",
        ),
    ],
)
async def test_a_setting_out_of_range_is_refused_and_not_written(tmp_path: Path, change: str, why: str) -> None:
    async with broker_peer(tmp_path) as peer:
        before = (await peer.ask(RequestCode.GET_BROKER_CONFIG)).body
        answer = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=f"fileReservedTime=9\n{change}\n".encode())
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, why)
        assert (await peer.ask(RequestCode.GET_BROKER_CONFIG)).body == before
