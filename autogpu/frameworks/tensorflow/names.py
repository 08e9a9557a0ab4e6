"""The GPUs that a script names before TensorFlow has made any: in graphs, eager blocks, strategies and towers."""

from __future__ import annotations

import re
from typing import Any, Iterable, MutableMapping
from weakref import WeakKeyDictionary

from autogpu.frameworks.base import caller_named

# "/gpu:1", "GPU:1", "/device:GPU:1", "/job:localhost/replica:0/task:0/device:GPU:1"; but not "XLA_GPU:1".
_NAME = re.compile(r"((?:^|[/:])gpu:)([0-9]{1,4})(?![0-9])", re.IGNORECASE)
_JOB = re.compile(r"/job:(\w+)")

# Operations that take no memory of a GPU: groups, such as an initializer, and what is fed.
_WITHOUT_MEMORY = {"NoOp", "Placeholder"}

# More than any machine has; a number comes from the script.
_MOST_GPUS = 1024


def named_gpu(name: Any) -> int | None:
    """The number of the logical GPU of this process that a name, ``DeviceSpec`` or ``LogicalDevice`` means, if any."""
    if not isinstance(name, str) and type(name).__module__.startswith("tensorflow"):
        to_string = getattr(name, "to_string", None)
        name = to_string() if callable(to_string) else getattr(name, "name", None)
    found = _NAME.search(name) if isinstance(name, str) else None
    job = _JOB.search(name) if isinstance(name, str) else None
    return int(found.group(2)) if found and (job is None or job.group(1) == "localhost") else None


def on_first_gpu(name: str) -> str:
    """The name with 0 for the GPU's number."""
    return _NAME.sub(r"\g<1>0", name, count=1)


class NamedGpus:
    """The logical GPUs that have been named so far, by number; and operations of a graph that have no device."""

    def __init__(self) -> None:
        self.found: frozenset[int] = frozenset()
        self.leaves_unplaced = False
        self._looked_at: MutableMapping[Any, int] = WeakKeyDictionary()

    def note(self, names: Iterable[Any]) -> None:
        """Note the GPUs that ``names`` mean; what can't be read is for TensorFlow to judge."""
        try:
            numbers = {named_gpu(name) for name in names}
        except Exception:
            return
        self.found |= {number for number in numbers if number is not None}

    def note_arguments(self, *args: Any, **kwargs: Any) -> None:
        """Note the GPUs that the arguments of a call mean, each a name or several."""
        for argument in (*args, *kwargs.values()):
            self.note(argument if isinstance(argument, (list, tuple)) else [argument])

    def note_graph(self, graph: Any) -> None:
        try:
            operations = graph.get_operations()
            # A graph only grows, and some scripts make a thousand sessions for one.
            new = operations[self._looked_at.get(graph, 0) :]
            self.note({operation.device for operation in new})
            unplaced = {operation.type for operation in new if not operation.device}
            self.leaves_unplaced |= not unplaced <= _WITHOUT_MEMORY
            self._looked_at[graph] = len(operations)
        except Exception:  # a class of the script's own, or no graph at all: TensorFlow says what is wrong with it
            return

    def note_callers(self) -> None:
        """Note the GPUs that Keras' ``multi_gpu_model`` is about to name: it asks for the list of devices first."""
        frame = caller_named("multi_gpu_model")
        if frame is not None:
            gpus = frame.f_locals.get("gpus")
            numbers = range(min(gpus, _MOST_GPUS)) if isinstance(gpus, int) else gpus
            self.note(f"/gpu:{number}" for number in numbers or ())


def noted(original: Any, named: NamedGpus, *args: Any, **kwargs: Any) -> Any:
    """Hook of a function that is told devices by name, and makes the first context before it looks at them."""
    named.note_arguments(*args, **kwargs)
    return original(*args, **kwargs)
