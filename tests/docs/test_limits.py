"""The page of limits agrees with the typed settings and constants."""

from __future__ import annotations

import re
from pathlib import Path

from rucola import settings
from rucola.broker.config import BrokerConfig
from rucola.client import route
from rucola.client.consumer.decoding import MAX_PULLED_SIZE
from rucola.client.producer.transaction import MAX_CHECKS
from rucola.domain.topic import MAX_NAME_LENGTH
from rucola.fastjson import MAX_DEPTH, MAX_TOLERANT_SIZE
from rucola.message import sql92
from rucola.message.compression import RATIO_VARIABLE, SIZE_VARIABLE, ExpansionLimits
from rucola.namesrv.config import NamesrvConfig
from rucola.protocol import header_limits
from rucola.protocol.frame import MAX_FRAME_SIZE, MAX_HEADER_SIZE
from rucola.protocol.route import MAX_REGISTRATION_SIZE, MAX_TOPIC_SIZE
from rucola.remoting import server_requests
from rucola.remoting.budget import FRAME_CHECK_INTERVAL_S, MIN_FRAME_RATE
from rucola.store.config import StoreConfig

PAGE = (Path(__file__).parents[2] / "docs" / "limits.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", PAGE, re.MULTILINE))


def test_the_page_has_the_default_of_every_limit() -> None:
    keys = settings.to_properties(BrokerConfig()) | settings.to_properties(StoreConfig())
    keys = settings.to_properties(NamesrvConfig()) | keys
    variables = {SIZE_VARIABLE: ExpansionLimits().max_size, RATIO_VARIABLE: ExpansionLimits().max_ratio}
    assert {key: str((keys | variables)[key]) for key in ROWS} == ROWS
    limits = {key for key in settings.keys_of((BrokerConfig, NamesrvConfig)) if re.match("max[A-Z]", key)}
    assert limits
    assert limits <= ROWS.keys()


def test_every_error_on_the_page_names_its_key() -> None:
    table = PAGE.split("## Keys")[1].split("## Connections")[0]
    errors = re.findall(r"^\| `(\w+)` \| \d+ \| [^|]+ \| ([^|]+) \|$", table, re.MULTILINE)
    assert len(errors) == table.count("\n| `")
    assert [key for key, error in errors if not error.endswith(f"({key})")] == []


def test_the_fixed_limits_are_those_of_the_code() -> None:
    fixed = dict(re.findall(r"^\| ([^|`]+) \| ([^|]+) \|$", PAGE.split("## Fixed")[1], re.MULTILINE))
    assert fixed["a frame"].startswith(f"{MAX_FRAME_SIZE >> 20} MiB")
    assert fixed["its header"] == f"{MAX_HEADER_SIZE >> 10} KiB"
    slow = f"{MIN_FRAME_RATE} bytes a second in {FRAME_CHECK_INTERVAL_S:g} s"
    assert fixed["growth of an incomplete frame"].startswith(slow)
    assert fixed["a JSON body of a request that is no plain JSON"] == f"{MAX_TOLERANT_SIZE >> 10} KiB"
    for name in ("MAX_NESTED_SIZE", "MAX_TOLERANT_HEADER"):
        assert re.search(rf"`{name}`\) \| {getattr(header_limits, name) >> 10} KiB \|", PAGE)
    assert f"(`MAX_EXT_FIELDS`) | {header_limits.MAX_EXT_FIELDS:,} |" in PAGE
    assert fixed["nesting of JSON"] == f"{MAX_DEPTH} levels"
    assert fixed["an SQL92 expression"] == (
        f"{sql92.MAX_LENGTH:,} characters, {sql92.MAX_COMMENTS} comments, {sql92.MAX_DEPTH} levels"
    )
    assert fixed["a property that SQL92 compares with a number"] == f"{sql92.MAX_NUMBER_LENGTH:,} characters"
    assert fixed["a registration, decompressed"] == f"{MAX_REGISTRATION_SIZE >> 20} MiB"
    assert fixed["its filter servers, and a single topic in it"] == f"{MAX_TOPIC_SIZE >> 10} KiB"
    assert (
        fixed["names of registered brokers, clusters and topics, and of those who lock queues or commit offsets"]
        == f"{MAX_NAME_LENGTH} characters"
    )
    assert fixed["queues in a route"].startswith(
        f"{route.MAX_QUEUES_PER_BROKER:,} for each broker, {route.MAX_QUEUES:,} in total:"
    )
    assert fixed["addresses of brokers in a route"].startswith(f"{route.MAX_ADDRESSES:,}:")
    assert fixed["decompressed bodies of a pull"].startswith(f"{MAX_PULLED_SIZE >> 20} MiB ")
    assert fixed["requests of one server that wait for an answer"].startswith(f"{server_requests.MAX_PENDING};")
    assert fixed["answers that a server does not read"].startswith(f"{server_requests.MAX_UNSENT >> 20} MiB;")
    assert fixed["transaction checks that run"].startswith(f"{MAX_CHECKS:,} for each producer;")
