"""The command line; ``main.VERBS`` says which file has a verb. Nothing imports it."""
