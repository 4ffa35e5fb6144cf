"""The pages, each a coroutine of a `Visit`; the order of the imports is that of the navigation."""

# isort: off
from rucola.console.pages import cluster, topics, groups, dead_letters, search, messages
from rucola.console.pages import tail, tables, outbox
from rucola.console.pages import commands, audit, login, views

# isort: on
from rucola.console.visit import PAGES

__all__ = [
    "PAGES", "audit", "cluster", "commands", "dead_letters", "groups", "login", "messages", "outbox", "search",
    "tables", "tail", "topics", "views",
]  # fmt: skip
