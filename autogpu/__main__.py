"""``python -m autogpu``: the command line, for the interpreter that runs it."""

import sys

try:
    from autogpu.cli.main import main
except ModuleNotFoundError as error:
    if error.name not in ("autogpu.cli", "click", "rich"):
        raise
    from autogpu import __path__ as folders
    from autogpu import __version__

    sys.exit(
        f"autogpu: autogpu {__version__} from {folders[0]} lacks {error.name}, which its commands need; "
        f"install autogpu into the environment of {sys.executable}"
    )

if __name__ == "__main__":
    main()
