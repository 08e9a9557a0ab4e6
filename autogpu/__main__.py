"""``python -m autogpu``: the command line, for the interpreter that runs it."""

from autogpu.cli.main import main

if __name__ == "__main__":
    main()
