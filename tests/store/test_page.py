"""docs/store.md says what is: its tests exist, its keys have these defaults, its tools do what stands beside them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from rucola import settings
from rucola.broker.config import BrokerConfig
from rucola.cli.main import main
from rucola.store.config import StoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from support.documents import Document
from support.installation import REPOSITORY
from support.stores import HOST, inner

DOCUMENT = Document.read("docs/store.md")
PAGE = DOCUMENT.text


def test_the_page_names_existing_tests_of_the_loss_windows() -> None:
    named = re.findall(r"`(tests/\S+\.py)::(\w+)`", PAGE)
    assert len(named) >= 6
    for path, name in named:
        source = (REPOSITORY / path).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {name}\(", source, re.MULTILINE), name


def test_the_page_documents_the_keys_of_retention() -> None:
    section = PAGE.partition("## Retention")[2].partition("\n## ")[0]
    keys = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", section, re.MULTILINE))
    assert len(keys) == 10
    defaults = settings.to_properties(StoreConfig()) | settings.to_properties(BrokerConfig())
    assert {key: defaults[key] for key in keys} == keys


def test_the_tools_of_the_page_print_the_documented_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with MessageStore(StoreConfig(Path("data"), HOST)) as store:
        places = [
            store.put(inner("Orders", k % 2, b"order %d" % k, keys=f"order-{k}", unique_key=f"U{k}"), 1000 * k + 1)
            for k in range(8)
        ]
    with open(f"data/commitlog/{0:020d}", "r+b") as log:
        log.seek(places[4].physical_offset + 88)  # in the body
        log.write(b"!")
    commands = DOCUMENT.rucola_commands()
    outputs = {}
    for command in commands:
        _, *arguments = shlex.split(command)
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == (1 if command.endswith("check data") else 0), (command, result.output)
        outputs[command] = result.stdout
    assert "CRC" in outputs["rucola store check data"]
    found = outputs["rucola store grep sound -s 'order 5' --body text"]
    assert "  match: [order 5]\n    order 5\n" in found
    assert json.loads(outputs["rucola store grep data -t Orders -k order-3"])["properties"]["KEYS"] == "order-3"
    dumped = [json.loads(line) for line in outputs["rucola store dump sound"].splitlines()]
    assert [message["properties"].get("KEYS") for message in dumped] == [
        None if k == 4 else f"order-{k}" for k in range(8)
    ]
    assert json.loads(outputs["rucola store check sound --json"]) == []
    assert check("sound") == []
