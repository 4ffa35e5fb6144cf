"""The cookbook: every program in examples/ prints what its docstring says, against a broker of its own."""

from __future__ import annotations

import ast
import runpy
import textwrap
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))
DOCS = (Path(__file__).resolve().parents[2] / "docs" / "client.md").read_text(encoding="utf-8")


def promised(path: Path) -> str:
    """What the program says that it prints: the end of its docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")), clean=False)
    assert docstring, f"{path.name} says what it shows and prints"
    return textwrap.dedent(docstring.partition("\n\nIt prints:\n\n")[2]).strip()


@pytest.mark.slow
@pytest.mark.rocketmq(messageDelayLevel="0s", enablePropertyFilter="true")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_its_documented_output(path: Path, rocketmq: Any, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip() == promised(path)


def test_every_example_is_documented() -> None:
    assert [path.name for path in EXAMPLES if f"(../examples/{path.name})" not in DOCS] == []
