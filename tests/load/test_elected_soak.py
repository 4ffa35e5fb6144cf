"""Some promotions of the soak of elections; `make soak-ha` runs a hundred."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.elected_soak import soak


@pytest.mark.slow
async def test_promotions_lose_nothing(tmp_path: Path) -> None:
    result = await soak(tmp_path, promotions=3, brokers=2, producers=2, seed=3)
    assert sum(map(len, result.failovers_s.values())) == 3
    # With two members, nearly every send has SLAVE_NOT_AVAILABLE until the old master has followed.
    assert result.acknowledged > 0
    assert result.polled > 50
