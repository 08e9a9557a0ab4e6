"""A parser for values that a child process printed with ``repr``."""

import re
from types import MappingProxyType

from autogpu.devices import model

NAMES = {**vars(model), "mappingproxy": MappingProxyType}


def value_of(printed):
    # The repr of an enum member is <ComputeMode.DEFAULT: 0>.
    return eval(re.sub(r"<(\w+\.\w+): [^>]*>", r"\1", printed), NAMES)
