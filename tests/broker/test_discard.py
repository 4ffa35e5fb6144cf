"""A broker whose config files are damaged starts only if it is allowed to lose what they had, which it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from rucola.errors import StoreCorrupt
from rucola.protocol.codes import ResponseCode
from support.broker_peer import broker_peer

FILES = ["topics", "subscriptionGroup", "consumerOffset", "consumerFilter", "delayOffset", "timer"]


async def prepare(path: Path) -> None:
    """Leave messages, and offsets of two groups."""
    async with broker_peer(path) as peer:
        for number in range(5):
            assert (await peer.send(b"%d" % number)).code == ResponseCode.SUCCESS
        for group, offset in (("g", 5), ("h", 3)):
            assert (await peer.commit(offset, group)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    "content", ["", "{", "[1]", '{"offsetTable":7,"topicConfigTable":7,"subscriptionGroupTable":7}']
)
@pytest.mark.parametrize("name", FILES)
async def test_a_damaged_file_prevents_the_start_unless_it_may_be_discarded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, content: str
) -> None:
    await prepare(tmp_path)
    file = tmp_path / "config" / f"{name}.json"
    file.write_text(content)
    file.with_name(f"{name}.json.bak").unlink(missing_ok=True)
    is_damaged = not (name == "consumerFilter" and content.startswith('{"'))  # a filter table has other members
    if is_damaged:
        with pytest.raises(StoreCorrupt) as refused:
            async with broker_peer(tmp_path):
                pass
        assert refused.value.path == str(file)
        assert "discardDamagedConfig" in refused.value.why
    async with broker_peer(tmp_path, discard_damaged_config=True) as peer:
        assert (await peer.send(b"more")).code == ResponseCode.SUCCESS
    if is_damaged:
        assert file.with_name(f"{name}.json.damaged").read_text() == content
        (lost,) = [record.args for record in caplog.records if record.name.endswith("tables.discard")]
        assert isinstance(lost, tuple)
        assert lost[0] == file


async def test_the_damaged_offsets_of_before_enable_lmq_are_named_and_discarded(tmp_path: Path) -> None:
    await prepare(tmp_path)
    file = tmp_path / "config" / "consumerOffset.json"
    file.write_text('{"offsetTable":{"T@g":{0:4},"T@h":7}}')
    file.with_name("consumerOffset.json.bak").unlink(missing_ok=True)
    lmq = {"enable_lmq": True}
    with pytest.raises(StoreCorrupt) as refused:
        async with broker_peer(tmp_path, store=lmq):
            pass
    assert refused.value.path == str(file)
    async with broker_peer(tmp_path, store=lmq, discard_damaged_config=True) as peer:
        assert await peer.committed("g") == 4
    assert file.with_name("consumerOffset.json.damaged").exists()


@pytest.mark.parametrize("older", ["{", '{"offsetTable":{"T@g":{0:2}}}'])
async def test_damaged_offsets_are_not_replaced_by_those_of_before_enable_lmq(tmp_path: Path, older: str) -> None:
    await prepare(tmp_path)
    for name, content in (("consumerOffset", older), ("lmqConsumerOffset", "{")):
        file = tmp_path / "config" / f"{name}.json"
        file.write_text(content)
        file.with_name(f"{name}.json.bak").unlink(missing_ok=True)
    lmq = {"enable_lmq": True}
    with pytest.raises(StoreCorrupt) as refused:
        async with broker_peer(tmp_path, store=lmq):
            pass
    assert refused.value.path == str(file)
    for is_allowed in (True, False):  # also at the next start, although no offset was committed
        async with broker_peer(tmp_path, store=lmq, discard_damaged_config=is_allowed) as peer:
            assert await peer.committed("g") == 0, "without an offset, the begin of the queue"
    assert file.with_name("lmqConsumerOffset.json.damaged").read_text() == "{"
    assert (tmp_path / "config" / "consumerOffset.json").read_text() == older


async def test_sound_consumer_offsets_survive_a_damaged_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await prepare(tmp_path)
    file = tmp_path / "config" / "consumerOffset.json"
    file.write_text('{"offsetTable":{"T@g":{0:5,1:"x"},"T@h":{0:[]},"T@i":4}}')
    file.with_name("consumerOffset.json.bak").unlink(missing_ok=True)
    async with broker_peer(tmp_path, discard_damaged_config=True) as peer:
        assert [await peer.committed(group) for group in ("g", "h")] == [5, 0], (
            "without an offset, the begin of the queue"
        )
    lost = [record.args for record in caplog.records if "is lost" in record.msg]
    assert lost == [("T@g", 1, "x"), ("T@h", 0, []), ("T@i", 4)]
