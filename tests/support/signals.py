"""Exceptions that a script's signal handler raises while other code runs."""

import os
import signal


def raise_in_signal_handler(error):
    """Raise ``error`` in a signal handler, which Python runs between two instructions of the caller."""

    def handler(number, frame):
        raise error

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        while True:
            pass
    finally:
        signal.signal(signal.SIGUSR1, before)
