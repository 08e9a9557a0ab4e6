"""The simulated GPU server under unmodified PyTorch. Numbers are garbage there: nothing looks at a loss."""

from __future__ import annotations

import pytest

from tests.simulator.conftest import contexts, each_release
from tests.support import framework_environments
from tests.support.framework_machines import CONTEXT, GIB, MIB

pytestmark = [pytest.mark.framework, pytest.mark.timeout(1200)]

FRAMEWORK = "torch"
NAME, TOTAL = "NVIDIA A100-SXM4-40GB", 8 * GIB
SMALLEST_SEGMENT = 2 * MIB  # what PyTorch's allocator takes for the first small tensor

PRELUDE = """
import torch

def asked():
    return sorted({json.loads(line)["call"] for line in open(os.environ["GPUSIM_LOG"])})

def train(model, *shape):
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(*shape, device="cuda")).square().mean().backward()
        optimizer.step()

def fits(gib):
    try:
        torch.empty(gib * 2**30, dtype=torch.uint8, device="cuda")
        return True
    except torch.cuda.OutOfMemoryError:
        return False
"""


@pytest.fixture(scope="module", params=each_release(framework_environments.TORCHES))
def python(request):
    return framework_environments.torch(request.param)


def missing(machine):
    return {call.call for call in machine.server.calls() if call.call.startswith("missing")}


def test_an_import_asks_nothing_a_count_nvml_and_a_description_cuda_without_a_context(run):
    program = """
say(asked())
say(torch.cuda.device_count(), asked())
about = torch.cuda.get_device_properties(3)
say(torch.cuda.is_available(), asked())
say(about.name, about.total_memory, about.major, about.minor, about.multi_processor_count)
# A thread of PyTorch's that wants the interpreter while it ends is unwound through C++ by CPython, which now and then
# aborts the process: "terminate called without an active exception".
os._exit(0)
"""
    described = [NAME, TOTAL, 8, 0, 108]
    assert run(program, fresh=True) == [[[]], [4, ["nvmlInit"]], [True, ["cuInit", "nvmlInit"]], described]


def test_a_tensor_takes_memory_on_its_gpu_only_until_the_process_ends(machine, run):
    said = run("x = torch.zeros(10, device='cuda:2'); say(*map(used_mib, range(4)))")
    assert said == [[0, 0, (CONTEXT + SMALLEST_SEGMENT) // MIB, 0]]
    assert contexts(machine) == [[2]]
    assert machine.server.used_bytes(2) == 0


FREE = TOTAL - CONTEXT


@pytest.mark.parametrize(
    ("program", "said"),
    [
        pytest.param(
            """
x = torch.zeros(2**28, device="cuda")
say(torch.cuda.memory_allocated(), *torch.cuda.mem_get_info())
del x
torch.cuda.empty_cache()
say(torch.cuda.memory_allocated(), *torch.cuda.mem_get_info())
""",
            [[GIB, FREE - GIB, TOTAL], [0, FREE, TOTAL]],
            id="memory-is-given-back-when-the-cache-is-emptied",
        ),
        pytest.param(
            """
x = torch.arange(5)
say(x.cuda().clone().cpu().tolist(), x.to("cuda:1").to("cuda:2").cpu().tolist(), x.pin_memory().cuda().tolist())
""",
            [[[0, 1, 2, 3, 4]] * 3],
            id="copies-arrive",
        ),
        pytest.param(
            """
stream, start, end = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
with torch.cuda.stream(stream):
    start.record()
    torch.ones(100, device="cuda") + 1
    end.record()
stream.synchronize()
torch.cuda.synchronize()
say(start.elapsed_time(end) >= 0, end.query())
""",
            [[True, True]],
            id="streams-and-events",
        ),
        pytest.param(
            """
graph, x = torch.cuda.CUDAGraph(), torch.ones(10, device="cuda")
with torch.cuda.graph(graph):
    y = x + 1
graph.replay()
say(list(y.shape))
""",
            [[[10]]],
            id="a-captured-graph-is-replayed",
        ),
    ],
)
def test_what_scripts_do_works(run, program, said):
    assert run(program) == said


@pytest.mark.parametrize(
    ("program", "used"),
    [
        pytest.param(
            """
train(torch.nn.Linear(8, 1).cuda(), 16, 8)
train(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)).cuda(), 4, 3, 32, 32)
train(torch.nn.TransformerEncoderLayer(32, 4).cuda(), 2, 5, 32)
""",
            [0],
            id="linear-convolution-and-attention",
        ),
        pytest.param(
            """
for layer in torch.nn.LSTM(8, 16, num_layers=2, bidirectional=True), torch.nn.GRU(8, 16):
    layer.cuda()(torch.randn(5, 4, 8, device="cuda"))[0].sum().backward()
""",
            [0],
            id="recurrent",
        ),
        pytest.param(
            """
data = torch.utils.data.TensorDataset(torch.randn(32, 8))
loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, pin_memory=True)
assert sum(len(batch.cuda(non_blocking=True)) for (batch,) in loader) == 32
""",
            [0],
            id="workers-of-a-loader",
        ),
        pytest.param(
            "train(torch.nn.DataParallel(torch.nn.Linear(8, 4).cuda()), 16, 8)", [0, 1, 2, 3], id="data-parallel"
        ),
    ],
)
def test_contexts_are_where_a_program_computes(machine, run, program, used):
    run(program)
    assert contexts(machine) == [used]
    assert missing(machine) == set()


def test_what_does_not_fit_beside_others_is_an_error_and_no_crash(machine, run):
    machine.server.change(0, processes={5004242: "7GiB"})
    assert run("say(fits(1))") == [[False]]


def test_a_function_that_nobody_wrote_fails_and_is_in_the_log(machine, run):
    program = """
try:
    torch.linalg.svd(torch.eye(4, device="cuda"))
except RuntimeError:
    say("failed")
"""
    assert run(program) == [["failed"]]
    assert missing(machine) != set()
