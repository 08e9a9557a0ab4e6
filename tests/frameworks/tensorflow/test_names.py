"""Reading GPU numbers from the device names of a script, which may be strings or any other objects."""

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
def test_gpu_number_is_read_from_the_name_of_a_local_gpu(name, number):
    assert named_gpu(name) == number


def kind_of_tensorflow(name, attribute):
    """Return an object whose class looks like TensorFlow's, and a list of the attributes that are read from it."""
    read = []
    found = property(lambda self: read.append(attribute) or "/gpu:1")
    return type(name, (), {"__module__": "tensorflow.python.eager.context", attribute: found})(), read


@pytest.mark.parametrize("attribute", ["name", "to_string"])
def test_attributes_of_a_mesh_are_not_read(attribute):
    """The process crashes if autogpu reads the name of a ``Mesh`` that C++ has not completed yet."""
    mesh, read = kind_of_tensorflow("Mesh", attribute)
    assert (named_gpu(mesh), read) == (None, [])


def test_logical_device_is_read_by_its_name():
    device, read = kind_of_tensorflow("LogicalDevice", "name")
    assert (named_gpu(device), read) == (1, ["name"])


def test_second_look_at_a_graph_reads_only_new_operations():
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
def test_unplaced_operations_that_use_memory_are_noted(graph, leaves_unplaced):
    named = NamedGpus()
    named.note_graph(graph)
    assert named.leaves_unplaced is leaves_unplaced


@pytest.mark.parametrize("graph", [None, 7, Graph(object()), [], {}])
def test_object_that_is_not_a_graph_names_no_gpu(graph):
    named = NamedGpus()
    named.note_graph(graph)
    assert named.found == frozenset()


def test_methods_of_a_script_object_are_not_called():
    class Strategy:
        def to_string(self, how):
            raise AssertionError

    named = NamedGpus()
    named.note([Strategy()])
    assert named.found == frozenset()


def test_gpus_of_multi_gpu_model_are_noted_before_it_builds_towers():
    def multi_gpu_model(model, gpus):
        named = NamedGpus()
        named.note_callers()
        return named.found

    assert multi_gpu_model(None, gpus=2) == {0, 1}
    assert multi_gpu_model(None, [1, 3]) == {1, 3}
    assert len(multi_gpu_model(None, 10**9)) == 1024
