"""The command line. ``main.VERBS`` maps each verb to its module.

Only ``__main__`` and the installed command import this package.
"""
