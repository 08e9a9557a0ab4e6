"""What keeps autogpu, or TensorFlow itself, from a GPU on this machine: facts are gathered, then judged."""

from autogpu.doctor.checks import Finding, State, examine
from autogpu.doctor.facts import Facts, gather

__all__ = ["Facts", "Finding", "State", "examine", "gather"]
