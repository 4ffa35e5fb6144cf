"""docs/security.md: its first try is carried out, and the defaults that it names are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rucola.remoting.tls_config import TlsConfig
from rucola.settings import keys_of
from support.walkthrough import Walkthrough

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_first_try_works_as_written(tmp_path: Path) -> None:
    reader = Walkthrough(tmp_path)
    try:
        reader.follow(PAGE[PAGE.index("## A first try") : PAGE.index("## TLS of servers")])
    finally:
        reader.close()


def test_every_key_of_tls_that_the_page_names_exists() -> None:
    named = {*re.findall(r"\btls\.[a-zA-Z.]*[a-zA-Z]", PAGE)} - {"tls.properties", "tls.crt", "tls.key"}
    assert len(named) > 12
    assert named <= keys_of([TlsConfig])
