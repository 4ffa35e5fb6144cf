"""The name servers in the environment: the data source and the commands of the pipeline use them, as clients do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql.types import StructType

from rucola.cli.main import main
from rucola.client.sync import Message, Producer
from rucola.errors import ConfigError
from rucola.spark.source.data_source import RocketMQSource
from support.broker_thread import broker_thread
from support.errors import raises
from support.small_store import SmallStore

BODY = StructType().add("body", "binary")


def pipeline(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["pipeline", *map(str, arguments)])


@pytest.fixture
def namesrv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name server of a broker with three messages of the topic T, which the environment names."""
    with broker_thread(tmp_path / "broker", "T", "Copy") as address:
        monkeypatch.setenv("NAMESRV_ADDR", address)
        with Producer("senders") as producer:
            producer.send_many(Message("T", b"body %d" % number) for number in range(3))
        yield address


def test_reads_and_writes_of_the_data_source_find_the_brokers(namesrv: str) -> None:
    source = RocketMQSource({"subscribe": "T"})
    reader = source.reader(BODY)
    rows = sum(batch.num_rows for split in reader.partitions() for batch in reader.read(split))
    assert rows == 3
    assert RocketMQSource({}).reader(BODY)._options.name_server == namesrv
    assert RocketMQSource({"topic": "T"}).writer(BODY, False)._task_writer._options.name_server == namesrv


def test_a_source_that_is_named_is_used(namesrv: str, small_store: SmallStore, monkeypatch: pytest.MonkeyPatch) -> None:
    small_store.put("Of the store")
    stored = RocketMQSource({"STOREPATH": str(small_store.path)}).reader(BODY)
    assert stored._options.name_server is None
    assert RocketMQSource({"nameServer": "h:1"}).reader(BODY)._options.name_server == "h:1"
    # A table keeps the source with which it was created. One of a store has no brokers to write to.
    created = RocketMQSource({"provider": "rocketmq", "option.topic": "T"}).schema()
    assert isinstance(created, StructType)
    monkeypatch.setenv("NAMESRV_ADDR", "other:1")
    assert RocketMQSource({}).reader(created)._options.name_server == namesrv
    assert RocketMQSource({}).writer(created, False)._task_writer._options.name_server == namesrv
    of_store = RocketMQSource({"provider": "rocketmq", "path": str(small_store.path), "option.topic": "T"}).schema()
    assert isinstance(of_store, StructType)
    with raises(ConfigError, subject="nameServer"):
        RocketMQSource({}).writer(of_store, False)


def test_an_archive_without_a_source_is_that_of_the_brokers(namesrv: str, tmp_path: Path) -> None:
    done = pipeline("archive", "--out", tmp_path / "lake", "--json")
    assert done.exit_code == 0, done.stderr
    archived = json.loads(done.stdout)
    assert (archived["source"], archived["topics"]) == (namesrv, {"T": 3})


def test_an_archive_of_a_store_ignores_the_environment(namesrv: str, small_store: SmallStore, tmp_path: Path) -> None:
    small_store.put("Stored")
    done = pipeline("archive", "--store", small_store.path, "--out", tmp_path / "lake", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["topics"] == {"Stored": 1}
    both = pipeline("archive", "--store", small_store.path, "-n", namesrv, "--out", tmp_path / "lake")
    assert (both.exit_code, "give either --store or --namesrvAddr" in both.stderr) == (2, True)


def test_a_replay_sends_to_the_brokers(namesrv: str, small_store: SmallStore, tmp_path: Path) -> None:
    small_store.put("Old")
    done = pipeline("replay", "--from", small_store.path, "--to", "Copy", "--ledger", tmp_path / "ledger", "--json")
    assert done.exit_code == 0, done.stderr
    reader = RocketMQSource({"subscribe": "Copy"}).reader(BODY)
    assert sum(batch.num_rows for split in reader.partitions() for batch in reader.read(split)) == 1


def test_without_a_source_the_error_names_the_variable(tmp_path: Path) -> None:
    done = pipeline("archive", "--out", tmp_path / "lake")
    assert done.exit_code == 2
    assert "give either --store or --namesrvAddr, or set ROCKETMQ_NAMESRV" in done.stderr
    with raises(ConfigError, subject="storePath"):
        RocketMQSource({"subscribe": "T"}).schema()
    with raises(ConfigError, subject="nameServer"):
        RocketMQSource({"topic": "T"}).writer(BODY, False)
