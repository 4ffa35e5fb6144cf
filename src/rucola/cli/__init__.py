"""The command line: `rucola`. One module for each family of commands; each prints what the rooms behind it return."""
