"""One log on two machines: what a master does for its slaves, and a slave to be one."""
