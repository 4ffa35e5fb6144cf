"""Command line of Rucola: one module or package per family of commands."""
