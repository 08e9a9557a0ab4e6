"""Find why autogpu, or a framework itself, reaches no GPU: facts are gathered, then judged by a table of checks."""
