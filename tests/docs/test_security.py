"""docs/security.md: its first try is carried out, and the defaults that it names are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rucola.remoting.tls_config import TlsConfig
from rucola.settings import keys_of
from support.documents import Document
from support.reader import Reader

PAGE = Document.read("docs/security.md")


@pytest.mark.slow
def test_the_first_try_works_as_written(tmp_path: Path) -> None:
    with Reader(tmp_path) as reader:
        reader.follow(PAGE.sections()["A first try"])


def test_every_key_of_tls_that_the_page_names_exists() -> None:
    named = {*re.findall(r"\btls\.[a-zA-Z.]*[a-zA-Z]", PAGE.text)} - {"tls.properties", "tls.crt", "tls.key"}
    assert len(named) > 12
    assert named <= keys_of([TlsConfig])
