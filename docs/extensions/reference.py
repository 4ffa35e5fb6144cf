"""Sphinx extension: tables of settings, and docstrings that are written as plain text.

The directive `settings` shows a dataclass of settings, one list per section:

    ```{settings} rucola.broker.config.BrokerConfig
    ```

and `columns` the columns of a table in a database, `values` a dictionary.

Docstrings of the package mark code by single backticks and indent examples and tables. `to_rest` converts both to
reStructuredText for autodoc.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sqlalchemy.dialects import postgresql

from rucola import settings
from rucola.reliable import Tables

_CODE = re.compile(r"(?<![`:\\])`([^`]+)`(?!`)")


class Setting(NamedTuple):
    """One key of a configuration file, as the reference shows it."""

    section: str
    key: str
    type: str
    default: str
    text: str


def settings_of(kind: type[Any]) -> Iterator[Setting]:
    """Yield the documented fields of a dataclass of settings in their order.

    A comment on a line of its own before a field begins a section. A field without a docstring is derived from others,
    not set.
    """
    source = inspect.getsource(kind)
    lines = source.splitlines()
    fields = {field.name: field for field in dataclasses.fields(kind)}
    hints = get_type_hints(kind, include_extras=True)
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    for statement, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if not (isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)):
            continue
        field = fields[statement.target.id]
        above = reversed(lines[: statement.lineno - 1])
        section = next((line.strip(" #") for line in above if line.startswith("    # ")), "")
        text = " ".join(inspect.cleandoc(str(following.value.value)).split())
        yield Setting(section, settings.key_of(field), _type(hints[field.name]), _default(field), text)


class SettingsList(SphinxDirective):
    """The settings of the dataclass that the argument names, as one definition list per section: phones are narrow."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].rpartition(".")
        lines: list[str] = []
        section = None
        for setting in settings_of(getattr(importlib.import_module(module), name)):
            if setting.section != section:
                section = setting.section
                lines += ["", f"**{section}**" if section else "", ""]
            default = f", default {setting.default}" if setting.default else ""
            lines += [f"`{setting.key}`", f": {setting.text} *{setting.type}{default}*", ""]
        return self.parse_text_to_nodes("\n".join(lines))


class ColumnsList(SphinxDirective):
    """The columns of the table of `rucola.reliable` that the argument names."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        lines: list[str] = []
        for column in getattr(Tables(), self.arguments[0]).columns:
            kind = column.type.compile(dialect=postgresql.dialect()).lower()
            rest = ", primary key" * column.primary_key or ", may be NULL" * bool(column.nullable)
            lines += [f"`{column.name}`", f": {column.doc}. *{kind}{rest}*", ""]
        return self.parse_text_to_nodes("\n".join(lines))


class ValuesTable(SphinxDirective):
    """The keys and values of the dictionary that the argument names."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].rpartition(".")
        values: dict[str, str] = getattr(importlib.import_module(module), name)
        rows = [f"| `{key}` | {f'`{value}`' if value else ''} |" for key, value in sorted(values.items())]
        return self.parse_text_to_nodes("\n".join(["| key | value |", "|---|---|", *rows]))


def _type(hint: Any) -> str:
    if (allowed := settings.range_of(hint)) is not None:
        unit = settings.unit_of(hint)
        return f"port, {allowed}" if unit == "port" else f"integer, {allowed} {unit}".rstrip()
    (kind,) = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(f"`{name}`" for name in kind.__members__)
    return {bool: "true or false", int: "integer", str: "text", Path: "path", settings.Secret: "secret"}[kind]


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING or field.default in ("", None, -1):
        return ""
    return f"`{settings.to_text(field.default)}`"


def to_rest(lines: list[str]) -> list[str]:
    """Convert a docstring: code in single backticks, and indented blocks, which become literal blocks."""
    converted: list[str] = []
    in_block = False
    for line in lines:
        is_indented = line.startswith("    ")
        if is_indented and not in_block and not (converted and converted[-1].strip()):
            converted += ["::", ""]
            in_block = True
        elif line.strip() and not is_indented:
            in_block = False
        converted.append(line if in_block else _CODE.sub(r"``\1``", line))
    return converted


def _convert_docstring(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    lines[:] = to_rest(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive and the conversion of docstrings."""
    app.add_directive("settings", SettingsList)
    app.add_directive("values", ValuesTable)
    app.add_directive("columns", ColumnsList)
    app.connect("autodoc-process-docstring", _convert_docstring)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
