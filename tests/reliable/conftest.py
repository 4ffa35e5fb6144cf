"""What tests of reliability have in common."""

from __future__ import annotations

import pytest

from rucola.testing.rocketmq import RocketMQ


@pytest.fixture
def topic(shared_rocketmq: RocketMQ) -> str:
    """A new topic of one queue on the broker that tests share."""
    name = shared_rocketmq.unique("T")
    shared_rocketmq.create_topic(name, 1)
    return name
