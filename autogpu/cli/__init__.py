"""The command line; ``main.VERBS`` says which file has a verb. Nothing but ``__main__`` imports it."""
