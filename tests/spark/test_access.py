"""The data source signs its requests: reads of and writes to a broker with access control."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rucola.client import Credentials
from rucola.errors import ConfigError
from rucola.spark.source.options import parse_read_options, parse_sink_options
from rucola.testing.rocketmq import RocketMQ
from support.access import ACCOUNTS, ADMIN, make_home
from support.errors import raises

KEYS = {"accessKey": "analyst", "secretKey": "secret of the analyst"}
ANALYST = """
  - accessKey: analyst
    secretKey: secret of the analyst
    defaultTopicPerm: PUB|SUB
    defaultGroupPerm: SUB
"""


@pytest.mark.slow
def test_rows_are_written_and_read_with_credentials(spark: SparkSession, tmp_path: Path) -> None:
    home = make_home(tmp_path / "home", ACCOUNTS + ANALYST)
    with RocketMQ(tmp_path, {"aclEnable": True, "rocketmqHome": str(home)}, ADMIN) as rocketmq:
        rocketmq.create_topic("Orders", queues=2)
        rows = spark.createDataFrame([(b"one",), (b"two",)], "body binary")
        source = {"nameServer": rocketmq.namesrv, "topic": "Orders"}
        rows.write.format("rocketmq").options(**source, **KEYS).mode("append").save()
        assert sorted(message.body for message in rocketmq.messages("Orders")) == [b"one", b"two"]
        read = spark.read.format("rocketmq").options(**source, **KEYS).load()
        assert sorted(bytes(row.body) for row in read.collect()) == [b"one", b"two"]
        with pytest.raises(Exception, match="has no access key"):
            spark.read.format("rocketmq").options(**source).load().collect()


def test_credentials_come_from_options_files_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"nameServer": "127.0.0.1:9876"}
    expected = Credentials(*KEYS.values())
    assert parse_read_options(source | KEYS).credentials == expected
    assert parse_sink_options(source | KEYS).credentials == expected
    assert KEYS["secretKey"] not in repr(parse_read_options(source | KEYS))
    file = tmp_path / "tools.yml"
    file.write_text("accessKey: analyst\nsecretKey: secret of the analyst\n")
    assert parse_read_options(source | {"credentialsFile": str(file)}).credentials == expected
    with pytest.raises(ConfigError):
        parse_read_options(source | {"accessKey": "analyst"})
    with raises(ConfigError, subject="accessKey"):
        parse_read_options(source | KEYS | {"credentialsFile": str(file)})
    assert parse_read_options(source).credentials is None
    monkeypatch.setenv("ROCKETMQ_CREDENTIALS_FILE", str(file))
    assert parse_read_options(source).credentials == expected
