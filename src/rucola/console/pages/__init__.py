"""The pages, each a coroutine of a `Visit`; the order of the imports is that of the navigation."""

from rucola.console.pages import cluster, topics, groups, dead_letters, search, messages, commands, audit, login  # isort: skip - the navigation
from rucola.console.visit import PAGES

__all__ = ["PAGES", "audit", "cluster", "commands", "dead_letters", "groups", "login", "messages", "search", "topics"]
