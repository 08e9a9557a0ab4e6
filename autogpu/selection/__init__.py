"""The choice of a process's GPUs and of the memory to claim on them, with the reason. Pure functions."""
