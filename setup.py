"""The error message for a pip that is too old to build autogpu: older than 19, or than 21.3 for ``-e``."""

import sys

if sys.version_info < (3, 7):
    sys.exit("autogpu needs Python 3.7 or newer, this is Python {}.{}".format(*sys.version_info))
sys.exit("autogpu needs pip 19 or newer (-e: 21.3): python -m pip install --upgrade pip")
