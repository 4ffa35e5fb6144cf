"""Output shared by all commands: JSON and tables."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from rucola.admin import commands
from rucola.cli import output
from rucola.cli.output import Column, optional, time_text, to_json, whole


class Renamed(msgspec.Struct, rename="camel", omit_defaults=True):
    queue_id: int
    broker_name: str = ""


class Plain(msgspec.Struct):
    message_id: str
    nested: list[Any]


@dataclasses.dataclass
class Counts:
    day_count: int
    by_topic: dict[str, Any]
    out_path: Path


def test_fields_are_in_camel_case_and_data_is_not() -> None:
    counts = Counts(1, {"my_topic": Plain("m_1", [Renamed(3), Counts(2, {}, Path("a_b"))])}, Path("/x"))
    assert to_json({"a_key": counts}) == {
        "a_key": {
            "dayCount": 1,
            "byTopic": {
                "my_topic": {
                    "messageId": "m_1",
                    "nested": [{"queueId": 3}, {"dayCount": 2, "byTopic": {}, "outPath": "a_b"}],
                }
            },
            "outPath": "/x",
        }
    }


TOPIC = "Topic-" + "x" * 88 + "-order"
TIME = "2013-01-01 05:15:00,000"
ID = "7F00000100002A9F00000000000A1B2C"


DECLARE = {"Column": Column, "whole": output.whole, "optional": output.optional}


def column(node: ast.expr) -> Column | None:
    """The column that an element of a tuple declares; None for any other expression."""
    match node:
        case ast.Constant(value=str(name)):
            return Column(name)
        case ast.Call(
            func=ast.Name(id="Column" | "whole" | "optional" as kind), args=[ast.Constant(value=str(name)), *_]
        ):
            return DECLARE[kind](name)
    return None


def tables() -> Iterator[tuple[str, tuple[Column, ...]]]:
    """The columns of every table in the source of the command line and of its catalogue."""
    modules = [path for package in (output, commands) for path in sorted(Path(package.__file__).parent.rglob("*.py"))]
    for path in modules:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Tuple | ast.List):
                columns = [one for element in node.elts if (one := column(element)) is not None]
                if len(columns) < 2:
                    continue
                if all(one.name.startswith("#") for one in columns) or all(one.name.isupper() for one in columns):
                    yield f"{path.stem}:{node.lineno}", tuple(columns)


@given(st.lists(st.tuples(st.sampled_from((Column, whole, optional)), st.integers(1, 90), st.booleans()), min_size=2))
def test_a_table_fits_its_terminal_unless_ids_alone_are_wider(drawn: list[tuple[Any, int, bool]]) -> None:
    columns = [kind(f"#Column {number}") for number, (kind, _, _) in enumerate(drawn)]
    cells = ["x" * size for _, size, _ in drawn]
    firm = [number for number, (_, _, is_firm) in enumerate(drawn) if is_firm]
    widths = output.fit(columns, [cells], firm, 80)
    assert 0 in widths
    assert all(number in widths for number, one in enumerate(columns) if one.is_whole)
    for number, width in widths.items():
        uncut = number in firm or columns[number].is_whole
        assert width >= (len(cells[number]) if uncut else min(len(cells[number]), 12))
    least = [number for number, one in enumerate(columns) if number == 0 or one.is_whole]
    assert sum(widths.values()) + 2 * (len(widths) - 1) <= 80 or [*widths] == least


@pytest.mark.parametrize(("where", "columns"), list(tables()))
def test_every_table_declares_its_ids_and_addresses_whole(where: str, columns: tuple[Column, ...]) -> None:
    for one in columns:
        if re.search(r"(message.?|msg|client|q|b|queue)id$|addrs?$|host$|ip$", one.name.lower()):
            assert one.is_whole, f"{where}: write whole({one.name!r}), since an id or address is useless if it is cut"
    assert not columns[0].is_optional, "the first column is never left out"


def test_the_tables_of_all_groups_are_found() -> None:
    found = {where.partition(":")[0] for where, _ in tables()}
    assert {"topics", "groups", "cluster", "contents", "inspection", "recovery", "search", "messages"} <= found


def shown(columns: tuple[str | Column, ...], rows: list[tuple[object, ...]], *options: str) -> Result:
    @click.command()
    @output.wide_option
    def command() -> None:
        output.print_table(columns, rows)

    return CliRunner().invoke(command, options)


COLUMNS = (whole("#Message ID"), "#Topic", "#Offset", optional("#Store Time"), optional("#Tags"), optional("#Keys"))
ROW = (ID, TOPIC, 4711, TIME, "T" * 30, "K" * 30)


@pytest.mark.usefixtures("terminal")
def test_a_terminal_gets_the_important_columns_and_wide_all() -> None:
    result = shown(COLUMNS, [ROW])
    head, line = result.stdout.splitlines()
    assert len(line) <= 80
    assert line.split()[0] == ID
    assert "…" in line
    assert "4711" in line
    assert "#Tags" not in head
    assert result.stderr == "not shown: #Tags, #Keys; --wide shows all columns\n"
    result = shown(COLUMNS, [ROW], "--wide")
    assert result.stdout.splitlines()[1].split() == " ".join(map(str, ROW)).split()
    assert result.stderr == ""


@pytest.mark.usefixtures("terminal")
def test_titles_are_broken_between_words() -> None:
    names = ("#Messages that only this broker has", "#Bytes that only this broker has", "#Updated")
    lines = [line.split() for line in shown(names, [(4711, 4712, TIME)]).stdout.splitlines()]
    assert lines[-1] == ["4711", "4712", *TIME.split()]
    assert sorted(word for line in lines[:-1] for word in line) == sorted(" ".join(names).split())
    assert len(lines) > 2


@pytest.mark.parametrize("timestamp_ms", [2**63 - 1, 1_700_000_000_000_000])
def test_a_number_that_is_no_time_is_printed_as_it_is(timestamp_ms: int) -> None:
    assert time_text(timestamp_ms) == str(timestamp_ms)


def test_a_name_is_shortened_in_its_middle() -> None:
    assert output.shorten("Topic-of-orders-1", 9) == "Topi…rs-1"
    assert output.shorten("short", 9) == "short"
    for width in range(1, 20):
        assert output.cell_width(output.shorten("日本語のトピック" * 3, width)) <= width
        assert output.cell_width(output.shorten("x" * 100, width)) == width


def test_control_characters_never_reach_the_terminal() -> None:
    hostile = "a\x1b[2J\x07\u202eb\x9b31m\n"
    result = shown(("#Topic", "#Keys"), [(hostile, hostile)], "--wide")
    row = result.stdout.split("\n", 1)[1]
    assert row.split() == [r"a\x1b[2J\x07\u202eb\x9b31m\n"] * 2
    assert output.printable("a\tb\x1b", keep="\t") == "a\tb\\x1b"
