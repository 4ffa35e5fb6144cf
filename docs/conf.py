"""The documentation site: `make docs` builds it into build/docs, with warnings as errors."""

from __future__ import annotations

import sys
from importlib.metadata import metadata, version
from pathlib import Path

from sphinx.application import Sphinx

sys.path[:0] = [str(Path(__file__).parent / "extensions"), str(Path(__file__).parents[1])]
from hatch_build import released  # noqa: E402

project = "Rucola"
version = version("rucola-mq")
release = version
extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx_click", "sphinx_copybutton", "reference", "apache", "diagrams",
    "links",
]  # fmt: skip
exclude_patterns = ["extensions"]

html_theme = "furo"
html_static_path = ["_static"]
html_title = f"Rucola {version}"
html_show_sourcelink = False
html_show_copyright = False
html_copy_source = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

autodoc_default_options = {"members": True, "undoc-members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_type_aliases = {"Listener": "Listener"}
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True


def setup(app: Sphinx) -> None:
    """Have the pages install from an index, once a project URL says that there are releases."""
    if any(url.startswith("Source,") for url in metadata("rucola-mq").get_all("Project-URL", [])):
        app.connect("source-read", lambda app, page, text: text.append(released(text.pop())))
