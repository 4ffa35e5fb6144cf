"""The pages, each a coroutine of a `Visit`; the order of the imports is that of the navigation."""

from rucola.console.pages import cluster, topics, groups, commands, audit, login  # isort: skip - the navigation
from rucola.console.visit import PAGES

__all__ = ["PAGES", "audit", "cluster", "commands", "groups", "login", "topics"]
