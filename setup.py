"""Only a pip that can't build autogpu runs this, one older than 19 (for -e, than 21.3): it prints what is needed."""

import sys

if sys.version_info < (3, 7):
    sys.exit("autogpu needs Python 3.7 or newer, this is Python {}.{}".format(*sys.version_info))
sys.exit("autogpu needs pip 19 or newer (-e: 21.3): python -m pip install --upgrade pip")
