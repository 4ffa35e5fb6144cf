"""Ownership of a store directory: only its owner, and root, may be able to change it.

Another user with write permission could replace a file of the log, or by a link have the broker overwrite a file
elsewhere. A broker therefore refuses a directory that belongs to another user or that every user may write to.
A directory of root's is accepted, since root can do everything anyway; a group that may write is, too, because an
operator or Kubernetes (fsGroup) chose it. Root refuses the directory of another user as well: files that root creates
in it could not be written by that user's broker later.
"""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

from rucola.errors import StoreError


def check_ownership(directory: Path) -> None:
    """Raise StoreError, with the command that mends it, if other users can change an existing directory."""
    try:
        status = directory.stat()
    except FileNotFoundError:
        return
    user = os.geteuid()
    if status.st_uid not in (user, 0):
        owner, own = _name(status.st_uid), _name(user)
        raise StoreError(
            f"{directory} belongs to {owner} and not to {own}: run this as {owner} (`sudo -u {owner} ...`), or "
            f"`chown -R {own} {directory}` makes it {own}'s"
        )
    if status.st_mode & stat.S_IWOTH:
        raise StoreError(f"every user of this machine can change {directory}: `chmod -R o-w {directory}` mends it")


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:  # in a container, users often have no names
        return str(user)
