"""The documentation site builds without a warning and has every setting, command and page."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rucola import settings
from rucola.broker.apache_settings import APACHE_SETTINGS
from rucola.broker.config import BrokerConfig
from rucola.cli.main import main
from rucola.namesrv.config import NamesrvConfig
from rucola.protocol.codes import ResponseCode
from rucola.store.config import StoreConfig

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
SOURCE = REPOSITORY / "src" / "rucola"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    target = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-d",
        target / "doctrees",
        DOCS,
        target / "html",
    ]
    built = subprocess.run(command, capture_output=True, text=True)
    assert (built.returncode, built.stderr) == (0, "")
    return target / "html"


@pytest.mark.slow
def test_every_setting_is_in_the_reference(site: Path) -> None:
    page = (site / "reference" / "configuration.html").read_text(encoding="utf-8")
    for kind in (BrokerConfig, StoreConfig, NamesrvConfig):
        for field in dataclasses.fields(kind):
            if field.name != "store_host":  # derived from the addresses
                assert f">{settings.key_of(field)}</span>" in page, field.name
    for key in APACHE_SETTINGS:
        assert f">{key}</span>" in page


@pytest.mark.slow
def test_every_command_is_in_the_reference(site: Path) -> None:
    page = (site / "reference" / "command-line.html").read_text(encoding="utf-8")
    for name in main.commands:
        assert f'id="rucola-{name}"' in page


@pytest.mark.slow
def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        found = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)"', page.read_text(encoding="utf-8"))
        assert not found, page


def test_every_response_code_that_is_sent_is_explained() -> None:
    table = (DOCS / "reference" / "response-codes.md").read_text(encoding="utf-8")
    rows = {name: int(code) for code, name in re.findall(r"^\| (\d+) \| (\w+) \|", table, re.MULTILINE)}
    assert rows == {name: ResponseCode[name].value for name in rows}
    used = {
        name
        for path in SOURCE.rglob("*.py")
        for name in re.findall(r"ResponseCode\.([A-Z_]+)\b", path.read_text(encoding="utf-8"))
    }
    assert used - rows.keys() <= {"NO_BUYER_ID", "NOT_IN_CURRENT_UNIT"}  # only Apache's servers send these
