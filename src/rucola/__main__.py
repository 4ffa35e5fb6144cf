"""`python -m rucola`: the command line, if the script `rucola` is not on the path."""

from rucola.cli.main import main

main()
