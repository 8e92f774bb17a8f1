"""Facts about a machine, a run or a topology, in words."""
