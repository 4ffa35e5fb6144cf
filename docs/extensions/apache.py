"""Sphinx extension: what the docstrings of the package say of Apache RocketMQ.

    ```{apache-classes}
    ```

is a table of Apache's classes and the modules that correspond to them, from the sentences "Corresponds to `CommitLog`
of Apache RocketMQ 4.9.8.".

    ```{apache-differences}
    ```

is a definition list of these modules and what follows "Deliberate difference:" or "Deliberate differences:" in their
docstrings.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

SOURCE = Path(__file__).parents[2] / "src"
_CORRESPONDS = re.compile(r"Corresponds\s+to\s+(.*?)(?=Deliberate\s+difference|\n\n|\Z)", re.DOTALL)
_DIFFERENCES = re.compile(r"Deliberate\s+differences?(?:\s+to\s[^:]*?)?:\s+(.*)", re.DOTALL)
_CLASS = re.compile(r"`([A-Z]\w*)(?:\.\w+)*`|`(org\.apache\.[\w.]+)`")


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield (name, docstring) of every module, class and function of the package that has one."""
    for path in sorted((SOURCE / "rucola").rglob("*.py")):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        yield from _docstrings_of(module, ast.parse(path.read_text(encoding="utf-8")))


def _docstrings_of(name: str, node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        if text := ast.get_docstring(node):
            yield name, text
        for child in node.body:
            yield from _docstrings_of(f"{name}.{getattr(child, 'name', '')}", child)


def classes() -> dict[str, list[str]]:
    """Return the names of Apache's classes, each with the modules, classes and functions that correspond to it."""
    found: dict[str, list[str]] = {}
    for name, text in docstrings():
        for match in _CORRESPONDS.finditer(text):
            if "Kafka" in match[1]:
                continue
            for one, package in _CLASS.findall(match[1]):
                modules = found.setdefault(one or package, [])
                if name not in modules:
                    modules.append(name)
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def differences() -> dict[str, str]:
    """Return what differs on purpose from Apache's classes, as Markdown, by module."""
    return {
        name: _as_sentence(match[1].partition("\n\n    ")[0].strip())
        for name, text in docstrings()
        if (match := _DIFFERENCES.search(text)) and "Patroni" not in match[0]
    }


def _as_sentence(text: str) -> str:
    first = text.split(maxsplit=1)[0]
    return text[:1].upper() + text[1:] if first.islower() else text  # not names, such as maxMessageSize


class ApacheClasses(SphinxDirective):
    """The table of Apache's classes."""

    def run(self) -> list[nodes.Node]:
        rows = [f"| `{name}` | {', '.join(f'`{one}`' for one in modules)} |" for name, modules in classes().items()]
        return self.parse_text_to_nodes("\n".join(["| Apache's class | Rucola's |", "|---|---|", *rows]))


class ApacheDifferences(SphinxDirective):
    """The list of differences."""

    def run(self) -> list[nodes.Node]:
        lines: list[str] = []
        for name, text in differences().items():
            first, *others = text.splitlines()
            lines += [f"`{name}`", f": {first}", *(f"  {line}".rstrip() for line in others), ""]
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("apache-classes", ApacheClasses)
    app.add_directive("apache-differences", ApacheDifferences)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
