"""A demonstration of autogpu: the same two jobs at once, first without autogpu, then with it."""
