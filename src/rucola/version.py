"""The version of Rucola that runs, and the commit that it was built from."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rucola import __version__

_FILE: Final = Path(__file__).with_name("_commit")

COMMIT: Final = _FILE.read_text(encoding="utf-8").strip() if _FILE.is_file() else ""
"""Its first 12 digits, and `-dirty` if the sources differed; empty if unknown, as of an editable installation."""

FULL_VERSION: Final = f"{__version__}+{COMMIT.replace('-', '.')}" if COMMIT else __version__
"""Such as 0.1.0+4ef53d445a79, as in PEP 440."""
