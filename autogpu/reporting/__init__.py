"""Every sentence that a user can read about GPUs, as functions of decisions, readings and errors."""
