"""Values that a program printed by their ``repr``."""

import re
from types import MappingProxyType

from autogpu.devices import model

NAMES = {**vars(model), "mappingproxy": MappingProxyType}


def value_of(printed):
    # An enum's member prints itself as <ComputeMode.DEFAULT: 0>.
    return eval(re.sub(r"<(\w+\.\w+): [^>]*>", r"\1", printed), NAMES)
