"""The simulated GPU server under unmodified PyTorch. Numbers are garbage there: nothing looks at a loss."""

import pytest

from tests.simulator.conftest import contexts, each_release
from tests.support import framework_environments
from tests.support.framework_machines import CONTEXT, GIB, MIB

pytestmark = [pytest.mark.framework, pytest.mark.timeout(1200)]

FRAMEWORK = "torch"
NAME, TOTAL = "NVIDIA A100-SXM4-40GB", 8 * GIB
SMALLEST_SEGMENT = 2 * MIB  # what PyTorch's allocator takes for the first small tensor

PRELUDE = "import torch\n"
# Each line says what it is about.
PROGRAM = """
about = torch.cuda.get_device_properties(3)
say("description", about.name, about.total_memory, about.major, about.minor, about.multi_processor_count)
x = torch.zeros(10, device="cuda:2")
say("first tensor", *map(used_mib, range(4)))

x = torch.zeros(2**28, device="cuda")
say("kept", torch.cuda.memory_allocated(), *torch.cuda.mem_get_info())
del x
torch.cuda.empty_cache()
say("given back", torch.cuda.memory_allocated(), *torch.cuda.mem_get_info())

x = torch.arange(5)
copies = x.cuda().clone(), x.to("cuda:1").to("cuda:2"), x.pin_memory().cuda()
say("copies", *[copy.tolist() for copy in copies])

stream, start, end = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
with torch.cuda.stream(stream):
    start.record()
    torch.ones(100, device="cuda") + 1
    end.record()
stream.synchronize()
torch.cuda.synchronize()
say("streams and events", start.elapsed_time(end) >= 0, end.query())

graph, x = torch.cuda.CUDAGraph(), torch.ones(10, device="cuda")
with torch.cuda.graph(graph):
    y = x + 1
graph.replay()
say("captured graph", list(y.shape))
"""
TRAINING = """
def train(model, *shape):
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(*shape, device="cuda")).square().mean().backward()
        optimizer.step()

train(torch.nn.Linear(8, 1).cuda(), 16, 8)
train(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)).cuda(), 4, 3, 32, 32)
train(torch.nn.TransformerEncoderLayer(32, 4).cuda(), 2, 5, 32)
for layer in torch.nn.LSTM(8, 16, num_layers=2, bidirectional=True), torch.nn.GRU(8, 16):
    layer.cuda()(torch.randn(5, 4, 8, device="cuda"))[0].sum().backward()
"""
FREE = TOTAL - CONTEXT


@pytest.fixture(scope="module", params=each_release(framework_environments.TORCHES))
def python(request):
    return framework_environments.torch(request.param)


def missing(machine):
    return {call.call for call in machine.server.calls() if call.call.startswith("missing")}


def test_what_scripts_do_works(machine, run):
    assert run(PROGRAM) == [
        ["description", NAME, TOTAL, 8, 0, 108],
        ["first tensor", 0, 0, (CONTEXT + SMALLEST_SEGMENT) // MIB, 0],
        ["kept", GIB, FREE - GIB, TOTAL],
        ["given back", 0, FREE, TOTAL],
        ["copies", *[[0, 1, 2, 3, 4]] * 3],
        ["streams and events", True, True],
        ["captured graph", [10]],
    ]
    assert machine.server.used_bytes(2) == 0


def test_a_training_runs_to_its_end_and_has_a_context_where_it_computes(machine, run):
    run(TRAINING)
    assert (contexts(machine), missing(machine)) == ([[0]], set())


def test_a_function_that_nobody_wrote_fails_and_is_in_the_log(machine, run):
    program = """
try:
    torch.linalg.svd(torch.eye(4, device="cuda"))
except RuntimeError:
    say("failed")
"""
    assert run(program) == [["failed"]]
    assert missing(machine) != set()
