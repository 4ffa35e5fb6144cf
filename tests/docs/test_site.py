"""The documentation site builds without a warning and has every setting, command and page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rucola import errors, settings
from rucola.broker.apache_settings import APACHE_SETTINGS
from rucola.broker.config import BrokerConfig
from rucola.cli.main import main
from rucola.namesrv.config import NamesrvConfig
from rucola.protocol.codes import ResponseCode
from rucola.reliable import Tables
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
    for key in settings.keys_of((BrokerConfig, StoreConfig, NamesrvConfig)):
        if key != "storeHost" and not key.startswith("maped"):  # derived from the addresses; a former spelling
            assert f">{key}</span>" in page, key
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


def test_every_response_code_is_explained() -> None:
    page = (DOCS / "reference" / "response-codes.md").read_text(encoding="utf-8")
    used_here, apaches = (
        {name: int(code) for code, name in re.findall(r"^\| (\d+) \| (\w+) \| \S", table, re.MULTILINE)}
        for table in page.split("These codes exist in 4.9.8")
    )
    assert used_here | apaches == {name: code.value for name, code in ResponseCode.__members__.items()}
    assert len(re.findall(r"^\| \d+ \|", page, re.MULTILINE)) == len(ResponseCode.__members__)
    used = {
        name
        for path in SOURCE.rglob("*.py")
        for name in re.findall(r"ResponseCode\.([A-Z_]+)\b", path.read_text(encoding="utf-8"))
    }
    assert used == used_here.keys()


@pytest.mark.slow
def test_every_column_of_the_reliability_tables_is_in_the_reference(site: Path) -> None:
    page = (site / "reference" / "reliable.html").read_text(encoding="utf-8")
    for table in Tables().metadata.sorted_tables:
        _, _, rest = page.partition(f'id="{table.name.replace("_", "-")}"')
        section = rest.partition("<section")[0]
        for column in table.columns:
            assert f">{column.name}</span>" in section, (table.name, column.name)
            assert column.doc, (table.name, column.name)


@pytest.mark.slow
def test_every_error_of_the_package_is_in_the_reference(site: Path) -> None:
    page = (site / "reference" / "errors.html").read_text(encoding="utf-8")
    for name, member in vars(errors).items():
        if isinstance(member, type) and issubclass(member, errors.MQError):
            assert f'id="rucola.errors.{name}"' in page


def test_every_metric_is_documented() -> None:
    """Those whose names are written in the source; tests of broker and clients compare all that are exported."""
    page = (DOCS / "metrics.md").read_text(encoding="utf-8")
    source = "".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    families = re.findall(r"(Gauge|Counter|Histogram)MetricFamily\(\s*\"(\w+)\"", source)
    families += [(kind, f"rocketmq_{name}") for kind, name in re.findall(r"\b(gauge|counter)\(\"(\w+)\"", source)]
    names = {name + "_total" * (kind.lower() == "counter") for kind, name in families}
    assert len(names) > 20
    assert {name for name in names if f"`{name}`" not in page} == set()
