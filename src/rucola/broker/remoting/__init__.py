"""What the broker answers, one module a subject, named as in `rucola.protocol`.

A processor is a function `(connection, command) -> Reply`. Each module holds one class that is given what it needs
and offers `table()`, its processors by request code.
"""
