"""The configuration of the Django app."""

from __future__ import annotations

from django.apps import AppConfig


class ReliableConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    """The app `rucola_reliable`."""

    name = "rucola.reliable.django"
    label = "rucola_reliable"
    verbose_name = "Reliable messages"
