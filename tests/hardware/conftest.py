"""Fixtures from other test packages, for simulated servers with unusual GPUs."""

from tests.failure_modes import conftest as failure_modes
from tests.frameworks import conftest as frameworks
from tests.frameworks.tensorflow import conftest as jobs

host, installed = jobs.host, jobs.installed
hooked, machine, commands = failure_modes.hooked, failure_modes.machine, failure_modes.commands
lab, train = failure_modes.lab, failure_modes.train
importers, newest, machine_of = frameworks.importers, frameworks.newest, frameworks.machine_of
