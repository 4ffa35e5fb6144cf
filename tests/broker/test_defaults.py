"""The defaults of broker.conf are those of Apache's broker, as a recorded one told its own; docs/compatibility.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from rucola import settings
from rucola.broker.apache_settings import APACHE_SETTINGS
from rucola.broker.config import BrokerConfig, from_properties
from rucola.errors import ConfigError
from rucola.protocol.codes import RequestCode
from rucola.store.config import StoreConfig
from support.broker_peer import broker_peer
from support.errors import raises
from support.recorded_frames import decode, exchanges

OF_THE_PLACE = {"brokerName", "brokerIP1", "brokerIP2", "namesrvAddr", "storePathRootDir"}
CONFIGURED = {
    "listenPort": "10911",
    "haListenPort": "10912",
    "traceTopicEnable": "false",
    "enablePropertyFilter": "false",
    "transactionTimeOut": "6000",
    "transactionCheckInterval": "60000",
    "transactionCheckMax": "15",
    "mappedFileSizeCommitLog": str(1 << 30),
    "mappedFileSizeConsumeQueue": str(300_000 * 20),
    "maxHashSlotNum": "5000000",
    "maxIndexNum": "20000000",
    "maxMessageSize": str(4 << 20),
    "messageDelayLevel": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    "diskMaxUsedSpaceRatio": "75",
}
"""What the recorded broker was told otherwise, with Apache's defaults."""
DIFFERENT = {"brokerFastFailureEnable": "false"}


def test_every_default_equals_apaches_except_the_documented_one(golden: Path) -> None:
    ours = settings.to_properties(BrokerConfig()) | settings.to_properties(StoreConfig(Path("store"), b""))
    asked = [exchange for exchange in exchanges(golden) if exchange.code == RequestCode.GET_BROKER_CONFIG]
    assert asked
    for exchange in asked:
        assert exchange.answer is not None
        theirs = settings.parse(decode(exchange.answer).body.decode()) | CONFIGURED
        assert {name for name in ours if name in theirs and ours[name] != theirs[name]} - OF_THE_PLACE == set(DIFFERENT)
        assert len(ours.keys() & theirs.keys()) > 50
    assert {name: ours[name] for name in DIFFERENT} == DIFFERENT


async def test_every_key_of_apaches_answer_is_answered(golden: Path, tmp_path: Path) -> None:
    """With Apache's value where there is no such setting here: its tools read them whether they exist or not."""

    async with broker_peer(tmp_path) as peer:
        response = await peer.ask(RequestCode.GET_BROKER_CONFIG)
        ours = settings.parse(response.body.decode())
    for exchange in exchanges(golden):
        if exchange.code == RequestCode.GET_BROKER_CONFIG and exchange.answer is not None:
            theirs = settings.parse(decode(exchange.answer).body.decode())
            assert theirs.keys() - ours.keys() == {"rocketmqHome"}, "a setting here too, and not set"
            foreign = theirs.keys() & APACHE_SETTINGS.keys()
            assert {key: ours[key] for key in foreign} == {key: theirs[key] for key in foreign}
    own = settings.to_properties(BrokerConfig()) | settings.to_properties(StoreConfig(Path("store"), b""))
    assert APACHE_SETTINGS.keys() & own.keys() == set(), "a setting is here or there"
    assert ours["storePathCommitLog"] == str(tmp_path / "commitlog")


async def test_a_key_without_effect_cannot_be_changed_and_says_so(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        answer = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"sendThreadPoolQueueCapacity=5")
        assert answer.remark == "sendThreadPoolQueueCapacity: a setting of Apache's broker that has no effect here"
        shown = settings.parse((await peer.ask(RequestCode.GET_BROKER_CONFIG)).body.decode())
        assert shown["sendThreadPoolQueueCapacity"] == "10000"


@pytest.mark.parametrize("key", ["enableDLegerCommitLog", "enableConsumeQueueExt"])
def test_a_switch_that_promises_what_the_broker_does_not_do_is_refused(key: str) -> None:
    with raises(ConfigError, subject=key):
        from_properties({key: "true"})
    _, _, unused = from_properties({key: "false"})
    assert unused == [key]
