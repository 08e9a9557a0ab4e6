"""The GPUs that a script names, as strings and objects; anything may come from a script."""

import pytest

from autogpu.frameworks.tensorflow.placement import NamedGpus, named_gpu


class Operation:
    def __init__(self, device, type="MatMul"):
        self.device, self.type = device, type


class Graph:
    def __init__(self, *devices, type="MatMul"):
        self.operations = [Operation(device, type) for device in devices]

    def get_operations(self):
        return list(self.operations)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("/gpu:1", 1),
        ("GPU:0", 0),
        ("/device:GPU:3", 3),
        ("/job:localhost/replica:0/task:0/device:GPU:2", 2),
        ("/job:worker/replica:0/task:1/device:GPU:2", None),
        ("/device:XLA_GPU:1", None),
        ("/cpu:0", None),
        ("", None),
        (None, None),
        (7, None),
        ("/gpu:999999999999999999999", None),
        ("/gpu:\u0661", None),
        (lambda operation: "/gpu:1", None),
    ],
)
def test_what_a_name_means(name, number):
    assert named_gpu(name) == number


def kind_of_tensorflow(name, attribute):
    """An object of a class that looks like TensorFlow's, and the list of what is read of it."""
    read = []
    found = property(lambda self: read.append(attribute) or "/gpu:1")
    return type(name, (), {"__module__": "tensorflow.python.eager.context", attribute: found})(), read


@pytest.mark.parametrize("attribute", ["name", "to_string"])
def test_only_descriptions_of_devices_are_read(attribute):
    """A ``Mesh`` that C++ has not completed yet crashes if its name is read."""
    mesh, read = kind_of_tensorflow("Mesh", attribute)
    assert (named_gpu(mesh), read) == (None, [])


def test_logical_device_is_read_by_its_name():
    device, read = kind_of_tensorflow("LogicalDevice", "name")
    assert (named_gpu(device), read) == (1, ["name"])


def test_a_graph_is_looked_at_once_and_then_where_it_has_grown():
    named, graph = NamedGpus(), Graph("/gpu:1", "", "/cpu:0")
    named.note_graph(graph)
    assert named.found == {1}
    graph.operations[0].device = "/gpu:2"
    graph.operations.append(Operation("/gpu:3"))
    named.note_graph(graph)
    assert named.found == {1, 3}


@pytest.mark.parametrize(
    ("graph", "leaves_unplaced"),
    [
        (Graph("/gpu:1", "/cpu:0"), False),
        (Graph("/gpu:1", ""), True),
        (Graph("", type="NoOp"), False),
        (Graph("", type="Placeholder"), False),
    ],
)
def test_what_a_graph_places_nowhere_is_known(graph, leaves_unplaced):
    named = NamedGpus()
    named.note_graph(graph)
    assert named.leaves_unplaced is leaves_unplaced


@pytest.mark.parametrize("graph", [None, 7, Graph(object()), [], {}])
def test_what_is_no_graph_names_nothing(graph):
    named = NamedGpus()
    named.note_graph(graph)
    assert named.found == frozenset()


def test_an_object_of_the_script_is_not_asked():
    class Strategy:
        def to_string(self, how):
            raise AssertionError

    named = NamedGpus()
    named.note([Strategy()])
    assert named.found == frozenset()


def test_towers_are_noted_before_they_are_built():
    def multi_gpu_model(model, gpus):
        named = NamedGpus()
        named.note_callers()
        return named.found

    assert multi_gpu_model(None, gpus=2) == {0, 1}
    assert multi_gpu_model(None, [1, 3]) == {1, 3}
    assert len(multi_gpu_model(None, 10**9)) == 1024
