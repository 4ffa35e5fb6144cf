"""Stores that Apache's broker wrote with features which are off by default: read right, rebuilt, or refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rucola.errors import StoreError
from rucola.message import MessageInner, properties
from rucola.message.hashing import tags_code
from rucola.message.record import decode
from rucola.store.config import PutMessageStatus
from rucola.store.config_files import config_path
from rucola.store.directory_reader import StoreReader
from rucola.store.features import Support, find_features
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from rucola.store.tools.dump import dump
from rucola.store.tools.grep import SearchQuery, grep
from rucola.store.tools.rebuild import rebuild
from rucola.store.tools.stat import stat
from support.apache_stores import crashed, settings, with_ext, with_lmq
from support.errors import raises
from support.stores import OpenStore, batch, config, files_of, inner, sound_store


def pulled(store: MessageStore, topic: str, tag: str | None = None) -> int:
    """The number of messages of a topic that a consumer of a tag gets."""
    accepts = None if tag is None else frozenset({tags_code(tag)}).__contains__
    count = 0
    for (name, queue_id), (begin, end) in store.queues().items():
        while name == topic and begin < end:
            result = store.get(topic, queue_id, begin, 32, accepts=accepts)
            count, begin = count + result.count, result.next_begin_offset
    return count


@pytest.mark.parametrize("has_ext_files", [True, False])
def test_units_with_an_ext_address_are_read_with_the_tags_code_of_their_record(
    tmp_path: Path, open_store: OpenStore, has_ext_files: bool
) -> None:
    root = with_ext(tmp_path)
    if not has_ext_files:
        shutil.rmtree(root / "consumequeue_ext")
    assert check(root) == []
    with StoreReader(root) as reader:
        found = list(grep(reader, SearchQuery(topic="S_tag", tag="A")))
        delayed = reader.units("SCHEDULE_TOPIC_XXXX", 4)["tags_code"].tolist()
    assert len(found) == 100
    expected = {row["cq"]: tags_code(row["properties"].get("TAGS")) for row in dump(root) if row["topic"] == "S_tag"}
    assert {row["cq"]: row["tagsCode"] for row in dump(root) if row["topic"] == "S_tag"} == expected
    store = open_store(settings(root))
    assert (
        [code for _, _, code in store.units("SCHEDULE_TOPIC_XXXX", 4, 0, 9)]
        == delayed
        == [
            1795717560548,
            1795717560569,
        ]
    )
    assert (pulled(store, "S_tag", "A"), pulled(store, "S_tag")) == (100, 201)
    # A crash, after which units are written again, and new units beside the old ones.
    store.put(inner("S_tag", tags="A"), 1_800_000_000_000)
    assert pulled(store, "S_tag", "A") == 101
    again = crashed(store, tmp_path / "crashed")
    with again:
        assert (pulled(again, "S_tag", "A"), pulled(again, "S_tag")) == (101, 202)
    assert check(tmp_path / "crashed") == []


def test_a_rebuild_replaces_ext_addresses(tmp_path: Path) -> None:
    root = with_ext(tmp_path)
    rebuild(root, tmp_path / "rebuilt")
    units = (tmp_path / "rebuilt" / "consumequeue" / "S_tag" / "1" / f"{0:020d}").read_bytes()[: 50 * 20]
    assert {units[at + 12 : at + 16] for at in range(0, len(units), 20)} == {bytes(4)}


LMQ = {"enable_lmq": True, "enable_multi_dispatch": True}


def units_of(store: MessageStore) -> dict[str, int]:
    """The number of units of each topic that has something to do with light message queues."""
    found: dict[str, int] = {}
    for (topic, _), (begin, end) in store.queues().items():
        if "lmq" in topic.lower():
            found[topic] = found.get(topic, 0) + end - begin
    return found


def for_lmqs(topic: str, names: str, **more: Any) -> MessageInner:
    """A message for further queues, with forged queue offsets."""
    given = {"INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": "7,7"}
    return inner(topic, **{"properties": properties.join(given), **more})


def test_light_message_queues_keep_their_units_and_get_new_ones(tmp_path: Path, open_store: OpenStore) -> None:
    root = with_lmq(tmp_path)
    assert check(root) == []
    before = {"S_lmq": 50, "%LMQ%a": 50, "%LMQ%b": 25}
    store = open_store(settings(root, **LMQ))
    assert units_of(store) == before
    assert (pulled(store, "%LMQ%a"), pulled(store, "%LMQ%b"), pulled(store, "%LMQ%b", "L")) == (50, 25, 25)
    # New messages: offsets continue, a new queue begins, a name that comes twice has one unit.
    now_ms = 1_800_000_000_000
    results = [
        store.put(for_lmqs("S_lmq", names, queue_id=1), now_ms)
        for names in ("%LMQ%a,%LMQ%new", "%LMQ%a,%LMQ%a", "T,%LMQ%a")
    ]
    stored = [decode(store.record_at(result.physical_offset) or b"").properties for result in results]
    assert [each.get("INNER_MULTI_QUEUE_OFFSET") for each in stored] == ["50,0", "51,51", None]
    after = {"S_lmq": 53, "%LMQ%a": 52, "%LMQ%b": 25, "%LMQ%new": 1}
    assert units_of(store) == after
    assert pulled(store, "%LMQ%new") == 1
    assert store.put_batch(batch(for_lmqs("S_lmq", "%LMQ%a")), now_ms).status is PutMessageStatus.MESSAGE_ILLEGAL
    # A crash; a crash after which nothing but log and configuration is left; the offline tools.
    for lost in ((), ("consumequeue", "index", "checkpoint")):
        again = crashed(store, copy := tmp_path / f"crashed-{len(lost)}")
        for name in lost:
            (copy / name).unlink() if (copy / name).is_file() else shutil.rmtree(copy / name)
        with again:
            assert units_of(again) == after
            assert pulled(again, "%LMQ%a") == 52
        assert check(copy) == []
    store.close()
    rebuilt = rebuild(root, tmp_path / "rebuilt")
    assert (rebuilt.units, rebuilt.messages) == (350, 350 - 52 - 25 - 1)
    counted = {queue.topic: queue.in_log.messages for queue in stat(root).queues if queue.topic.startswith("%LMQ%")}
    assert counted == {"%LMQ%a": 52, "%LMQ%b": 25, "%LMQ%new": 1}
    with StoreReader(root) as reader:
        assert len(list(grep(reader, SearchQuery(topic="%LMQ%b")))) == 25


def contents(root: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of everything below a directory."""
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in [root, *root.rglob("*")]}


def turn_into_dledger(root: Path) -> None:
    """What a broker with enableDLegerCommitLog=true leaves: the log is in dledger-n0/data/."""
    (root / "dledger-n0").mkdir()
    (root / "commitlog").rename(root / "dledger-n0" / "data")


@pytest.mark.parametrize(
    ("change", "named", "support"),
    [
        (lambda root: shutil.rmtree(root / "consumequeue_ext"), None, None),
        (lambda root: None, "consumequeue_ext", Support.READ),
        (lambda root: (root / "lost+found").mkdir(), "consumequeue_ext", Support.READ),
        (turn_into_dledger, "dledger-n0", Support.REFUSED),
        (lambda root: (root / "dledger-n1").mkdir(), "dledger-n1", Support.REFUSED),
        (lambda root: (root / "timerwheel").touch(), "timerwheel", Support.REFUSED),
        (lambda root: (root / "timerlog").mkdir(), "timerlog", Support.REFUSED),
        (lambda root: (root / "compaction").mkdir(), "compaction", Support.REFUSED),
        (lambda root: (root / "tieredstore").mkdir(), "tieredstore", Support.REFUSED),
        (lambda root: (root / "consumequeue" / "CURRENT").touch(), "consumequeue", Support.REFUSED),
        (lambda root: (root / "config" / "topics").mkdir(), "topics", Support.REFUSED),
        (lambda root: shutil.copytree(root / "commitlog", root / "older" / "log"), "older", Support.REFUSED),
        (lambda root: (root / "logs").mkdir(), "consumequeue_ext", Support.READ),
        (
            lambda root: (root / "consumequeue" / "%LMQ%x" / "0").mkdir(parents=True),
            "consumequeue",
            Support.NEEDS_SETTING,
        ),
    ],
)
def test_every_feature_is_named_and_what_cannot_be_served_is_refused_before_anything_changes(
    tmp_path: Path, change: Callable[[Path], None], named: str | None, support: Support | None
) -> None:
    root = with_ext(tmp_path)
    change(root)
    features = {feature.path.name: feature for feature in find_features(root)}
    assert (named is None and not features) or features[named or ""].support is support
    findings = {finding.path.name for finding in check(root)}
    assert (named in findings) is (support is Support.REFUSED)
    before = contents(root)
    if support in (Support.REFUSED, Support.NEEDS_SETTING):
        with pytest.raises(StoreError) as caught:
            MessageStore(settings(root)).open()
        assert Path(caught.value.subject).name == named
        assert contents(root) == before
    else:
        with MessageStore(settings(root)) as store:
            assert pulled(store, "S_tag", "A") == 100


@pytest.mark.parametrize("given", [{}, {"enable_lmq": True}, {"enable_multi_dispatch": True}])
def test_a_store_with_light_message_queues_is_opened_only_with_their_settings(
    tmp_path: Path, given: dict[str, bool]
) -> None:
    root = with_lmq(tmp_path)
    before = {path: path.read_bytes()[:1000] for path in (root / "consumequeue").rglob("0*0")}
    found = {feature.name for feature in find_features(root)}
    with pytest.raises(StoreError) as refusal:
        MessageStore(settings(root, **given)).open()
    assert {path: path.read_bytes()[:1000] for path in before} == before
    missing = {"LMQ queues": "enable_multi_dispatch", "LMQ consumer offsets": "enable_lmq"}
    assert found == missing.keys()
    assert {name for name in found if name in str(refusal.value)} == {
        name for name, setting in missing.items() if setting not in given
    }


def test_a_store_whose_topics_have_units_of_other_topics_is_not_opened_without_multi_dispatch(tmp_path: Path) -> None:
    """Apache's broker takes any topic in INNER_MULTI_DISPATCH; here it is written over the name of an LMQ."""
    root = with_lmq(tmp_path)
    shutil.rmtree(root / "consumequeue" / "%LMQ%a")
    (root / "config" / "lmqConsumerOffset.json").rename(root / "config" / "consumerOffset.json")
    log = root / "commitlog" / f"{0:020d}"
    log.write_bytes(log.read_bytes().replace(b"%LMQ%b", b"Others"))
    (root / "consumequeue" / "%LMQ%b").rename(queue := root / "consumequeue" / "Others")
    units = (queue / "0" / f"{0:020d}").read_bytes()[:500]
    with raises(StoreError, subject=str(queue / "0")):
        MessageStore(settings(root)).open()
    assert (queue / "0" / f"{0:020d}").read_bytes()[:500] == units


def test_a_log_in_another_directory_of_the_store_is_none_that_is_unknown(tmp_path: Path) -> None:
    given = config(tmp_path / "store", store_path_commit_log=tmp_path / "store" / "deep" / "log")
    for _ in range(2):
        with MessageStore(given) as store:
            store.put(inner(), 1000)
    assert [feature.path.name for feature in find_features(tmp_path / "store")] == ["deep"]
    (tmp_path / "store" / "deep" / "log").rename(tmp_path / "store" / "commitlog")
    (tmp_path / "store" / "deep").rmdir()
    assert check(tmp_path / "store") == []


@pytest.mark.parametrize("document", ['{"format":2}', '{"format":"1.5"}', "[]"])
def test_a_store_of_a_newer_rucola_is_not_opened(tmp_path: Path, document: str) -> None:
    with sound_store(tmp_path) as store:
        store.put(inner(), 0)
    path = config_path(tmp_path, "rucola")
    path.parent.mkdir(exist_ok=True)
    path.write_text(document)
    before = files_of(tmp_path)
    with raises(StoreError, subject=str(path)):
        MessageStore(config(tmp_path)).open()
    assert files_of(tmp_path) == before
    path.write_text('{"format":1}')
    with sound_store(tmp_path) as store:
        assert store.max_offset("T", 0) == 1
