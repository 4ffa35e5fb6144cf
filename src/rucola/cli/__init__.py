"""Command line of Rucola: one module or package per family of commands.

Each calls the library and prints results.
"""
