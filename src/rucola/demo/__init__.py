"""The demonstration: a year of flights through the whole house. `run` tells the story; `rucola demo` starts it."""
