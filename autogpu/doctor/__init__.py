"""Find why autogpu, or a framework itself, reaches no GPU."""
