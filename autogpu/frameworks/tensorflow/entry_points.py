"""Where a script gives TensorFlow a ConfigProto of its own, or names the device of a result.

TensorFlow merges nothing into such a proto, so it is completed here, in a copy: the script's own object may be used
again, and compared.
"""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from autogpu.frameworks.tensorflow.placement import PlacementResolver


def session(original: Any, resolver: PlacementResolver) -> Any:
    """``BaseSession.__init__``: ``tf.Session``, ``InteractiveSession``, Keras' and estimators'."""

    @functools.wraps(original)
    def __init__(self: Any, target: Any = "", graph: Any = None, config: Any = None, **kwargs: Any) -> None:
        # TensorFlow's __del__ looks for it, also in a session that the policy refuses.
        self._session = None
        resolver.named.note_graph(graph)
        if target:
            # Its devices are made where the target is; a target in this process has made them already.
            with resolver.remote_session():
                original(self, target, graph, resolver.softened(config), **kwargs)
            return
        # Without a proto TensorFlow reads Context.config, which completes itself.
        config = config if config is None else resolver.completed(config)
        original(self, target, graph, config, **kwargs)
        resolver.on_context()

    return __init__


def server(original: Any, resolver: PlacementResolver) -> Any:
    """``Server.__init__``: ``tf.distribute.Server``, ``tf.train.Server``."""

    @functools.wraps(original)
    def __init__(self: Any, server_or_cluster_def: Any, *args: Any, **kwargs: Any) -> None:
        given = server_or_cluster_def
        own = getattr(given, "default_session_config", None)
        if own is not None:
            # The script's two protos, as TensorFlow merges them: what is completed must not be merged once more.
            given = type(given)()
            given.CopyFrom(server_or_cluster_def)
            given.ClearField("default_session_config")
        args, kwargs = _with_config(args, kwargs, lambda config: resolver.completed(_merged(own, config)))
        original(self, given, *args, **kwargs)
        resolver.on_context()

    return __init__


def _merged(base: Any, proto: Any) -> Any:
    if base is None:
        return proto
    merged = type(base)()
    merged.CopyFrom(base)
    if proto is not None:
        merged.MergeFrom(proto)
    return merged


# Of Server.__init__ after the cluster: job_name, task_index, protocol, config.
_CONFIG = 3


def _with_config(
    args: tuple[Any, ...], kwargs: dict[str, Any], change: Callable[[Any], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if len(args) > _CONFIG:
        return (*args[:_CONFIG], change(args[_CONFIG]), *args[_CONFIG + 1 :]), kwargs
    return args, {**kwargs, "config": change(kwargs.get("config"))}


def mirrored(original: Any, resolver: PlacementResolver) -> Any:
    """``MirroredExtended.__init__``: a strategy over all GPUs that TensorFlow has, or over those that it is told.

    By how many logical and physical GPUs there are, TensorFlow judges whether two replicas are on one card, where NCCL
    fails: cards that the process does not use must not count.
    """

    @functools.wraps(original)
    def __init__(self: Any, container_strategy: Any, devices: Any = None, *args: Any, **kwargs: Any) -> None:
        with resolver.only_cards_in_use():
            original(self, container_strategy, devices, *args, **kwargs)
        if devices is None:
            with resolver.allocator.guard():
                resolver.allocator.on_replicas("MirroredStrategy", len(self.worker_devices))

    return __init__


def on_named_device(original: Any, resolver: PlacementResolver) -> Any:
    """A function that is told by name where its result is to be, which TensorFlow does not place softly."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        resolver.named.note_arguments(*args, **kwargs)
        existing = resolver.existing
        return original(*map(existing, args), **{key: existing(value) for key, value in kwargs.items()})

    return call


def device_iterator(original: Any, resolver: PlacementResolver) -> Any:
    """``__init__`` of an iterator over shards of a dataset, each on a device: softly placed, they are the CPU's."""

    @functools.wraps(original)
    def __init__(self: Any, dataset: Any = None, devices: Any = None, *args: Any, **kwargs: Any) -> None:
        is_list = isinstance(devices, (list, tuple))
        original(self, dataset, list(map(resolver.existing, devices)) if is_list else devices, *args, **kwargs)
        self._devices = devices  # by these it is asked for the next elements

    return __init__
