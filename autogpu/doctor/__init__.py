"""What keeps autogpu, or a framework itself, from a GPU on this machine: facts are gathered, then judged."""
