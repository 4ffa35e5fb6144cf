"""docs/router.md, followed literally with one broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.documents import Document
from support.reader import Reader
from support.waiting import wait_until


@pytest.mark.slow
def test_the_page_works_as_written(tmp_path: Path) -> None:
    page = Document.read("docs/router.md")
    rest = page.after("## What a handler takes and returns")
    with Reader(tmp_path) as reader:
        reader.follow(Document(page.text.removesuffix(rest.text)))
        # Until here the kitchen is alone; the programs that follow use its router, and so join its groups.
        wait_until(lambda: "served pizza for 2\n" in reader.printed("python kitchen.py"))
        reader.follow(rest)
        wait_until(lambda: "served risotto for 1" in reader.printed("uvicorn") + reader.printed("python kitchen.py"))
        reader.interrupt("uvicorn")
        reader.interrupt("python kitchen.py")
        reader.interrupt("rucola standalone")
        reader.type("rucola store check store")
