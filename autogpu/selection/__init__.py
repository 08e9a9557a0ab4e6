"""Which GPUs a process takes, how much of them, and why. Pure: values in, values out."""
