"""The pages, each a coroutine of a `Visit`; the order of the imports is that of the navigation."""

# isort: off
from rucola.console.pages import cluster, topics, groups, clients, dead_letters, delayed, search, messages, tail
from rucola.console.pages import tables, outbox
from rucola.console.pages import configuration, commands, audit, login, views

# isort: on
from rucola.console.visit import PAGES

__all__ = [
    "PAGES", "audit", "clients", "cluster", "commands", "configuration", "dead_letters", "delayed", "groups", "login",
    "messages", "outbox", "search", "tables", "tail", "topics", "views",
]  # fmt: skip
