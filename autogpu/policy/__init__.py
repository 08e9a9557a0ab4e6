"""The settings of a process, read from every layer, each with where it was set."""

from autogpu.policy.kinds import MemoryLimit as MemoryLimit
from autogpu.policy.merge import problems_of as problems_of
from autogpu.policy.merge import resolve as resolve
from autogpu.policy.model import BY_DOTTED as BY_DOTTED
from autogpu.policy.model import KEYS as KEYS
from autogpu.policy.model import LAYERS as LAYERS
from autogpu.policy.model import SYSTEM_FILE as SYSTEM_FILE
from autogpu.policy.model import Key as Key
from autogpu.policy.model import Origin as Origin
from autogpu.policy.model import Policy as Policy
from autogpu.policy.model import Problem as Problem
from autogpu.policy.model import Resolved as Resolved
from autogpu.policy.model import Setting as Setting
from autogpu.policy.sources import working_directory as working_directory
