"""Engines and launchers: the GPUs that they granted to this process, and its rank in its job."""
