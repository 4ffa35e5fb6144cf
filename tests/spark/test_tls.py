"""The data source by TLS: brokers that enforce it are read and written with the option tlsConfigFile."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rucola.errors import ConfigError
from rucola.spark.source.options import parse_read_options
from rucola.store.tools.check import check
from rucola.testing.rocketmq import RocketMQ
from support.certificates import Certificates
from support.errors import raises


@pytest.mark.spark
def test_live_brokers_are_read_and_written_by_tls(
    spark: SparkSession, certificates: Certificates, tmp_path: Path
) -> None:
    server, client = (str(certificates.directory / f"{name}.properties") for name in ("server", "client"))
    with RocketMQ(tmp_path, {"tls.config.file": server}) as rocketmq:
        options = {"nameServer": rocketmq.namesrv, "topic": "T"}
        rocketmq.send("T", b"first")
        rows = spark.createDataFrame([("second",), ("third",)], "body string")
        rows.write.format("rocketmq").options(**options, tlsConfigFile=client).mode("append").save()
        read = spark.read.format("rocketmq").options(**options, tlsConfigFile=client).load()
        assert {bytes(row["body"]) for row in read.collect()} == {b"first", b"second", b"third"}
        with pytest.raises(PySparkException, match="it sent nothing: if it enforces TLS"):
            spark.read.format("rocketmq").options(**options).load().collect()
    assert check(tmp_path / "store") == []


def test_a_store_is_read_without_tls() -> None:
    with raises(ConfigError, subject="storePath"):
        parse_read_options({"storePath": "store", "tlsConfigFile": "tls.properties"})
