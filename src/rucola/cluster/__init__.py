"""A cluster on one machine: its layout, and a supervisor that runs its servers.

`rucola cluster` (`cli.cluster`) runs it; `cli.supervised` is the entry point of the child processes.
"""
