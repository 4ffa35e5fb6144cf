"""Some promotions of the soak of elections; `make soak-ha` runs a hundred."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.elected_soak import QUIET_SENDS, soak


@pytest.mark.slow
async def test_promotions_lose_nothing(tmp_path: Path) -> None:
    result = await soak(tmp_path, promotions=3, brokers=3, producers=12, seed=3)
    assert sum(map(len, result.failovers_s.values())) == 3
    assert result.acknowledged > 3 * QUIET_SENDS
    assert result.polled > 3 * QUIET_SENDS
    assert result.popped > 9 * QUIET_SENDS
    assert result.proxied > 0
