"""The simulated GPU server under unmodified PyTorch. Numbers are garbage there: nothing looks at a loss."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Iterator

import pytest

from tests.gpusim import Gpu, Server
from tests.support import framework_environments

pytestmark = [pytest.mark.framework, pytest.mark.timeout(1200)]

MIB, GIB = 2**20, 2**30
CONTEXT = 256 * MIB
SMALLEST_SEGMENT = 2 * MIB  # what PyTorch's allocator takes for the first small tensor

PRELUDE = """
import json, os, sys
import torch

def say(*values):
    print(json.dumps(values), flush=True)

def train(model, *shape):
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(*shape, device="cuda")).square().mean().backward()
        optimizer.step()
"""

# A thread of PyTorch's that wants the interpreter while it ends is unwound through C++ by CPython, which now and then
# aborts the process: "terminate called without an active exception".
EPILOGUE = """
if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(0)
"""


@pytest.fixture(scope="module", params=framework_environments.TORCHES, ids=lambda version: f"torch-{version.version}")
def torch_python(request) -> Path:
    return framework_environments.torch(request.param)


@pytest.fixture
def four(torch_python: Path, tmp_path: Path) -> Iterator[Server]:
    gpus = [Gpu(name="NVIDIA A100", memory="40GiB", compute_capability="8.0", multiprocessors=108)] * 4
    with Server(gpus, folder=tmp_path, context=CONTEXT) as server:
        yield server


@pytest.fixture
def run(torch_python: Path, four: Server, tmp_path: Path):
    def run_program(program: str, *command: str, **environ: str) -> list:
        file = tmp_path / "program.py"
        file.write_text(PRELUDE + program + EPILOGUE)
        done = four.run([str(torch_python), *command, str(file)], environ=environ, timeout=300)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run_program


def contexts(server: Server) -> list[list[int]]:
    return sorted(sorted(gpus) for gpus in server.contexts().values())


def missing(server: Server) -> set[str]:
    return {call.call for call in server.calls() if call.call.startswith("missing")}


def test_an_import_asks_for_nothing(four, run):
    assert run("") == []
    assert four.calls() == []


def test_gpus_are_counted_with_nvml_and_described_without_a_context(four, run):
    assert run("say(torch.cuda.device_count())") == [[4]]
    assert {call.call for call in four.calls()} == {"nvmlInit"}
    program = """
    say(torch.cuda.is_available())
    about = torch.cuda.get_device_properties(3)
    say(about.name, about.total_memory, about.major, about.minor, about.multi_processor_count)
    """.replace("\n    ", "\n")
    assert run(program) == [[True], ["NVIDIA A100", 40 * GIB, 8, 0, 108]]
    assert four.contexts() == {}
    assert four.calls(call="cuInit") != []


def test_a_tensor_takes_memory_on_its_gpu_only_until_the_process_ends(four, torch_python):
    program = "import sys, torch; x = torch.zeros(10, device='cuda:2'); print(flush=True); sys.stdin.readline()"
    holder = four.popen([str(torch_python), "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    holder.stdout.readline()
    assert contexts(four) == [[2]]
    assert [four.used_bytes(gpu) for gpu in range(4)] == [0, 0, CONTEXT + SMALLEST_SEGMENT, 0]
    holder.communicate("\n", timeout=60)
    assert [four.used_bytes(gpu) for gpu in range(4)] == [0, 0, 0, 0]


def test_memory_is_given_back_when_the_cache_is_emptied(run):
    said = run("""
x = torch.zeros(2**28, device="cuda")
say(torch.cuda.memory_allocated(), *torch.cuda.mem_get_info())
del x
torch.cuda.empty_cache()
say(torch.cuda.memory_allocated(), *torch.cuda.mem_get_info())
""")
    free = 40 * GIB - CONTEXT
    assert said == [[GIB, free - GIB, 40 * GIB], [0, free, 40 * GIB]]


def test_only_visible_gpus_are_used(four, run):
    said = run("torch.zeros(1, device='cuda'); say(torch.cuda.device_count())", CUDA_VISIBLE_DEVICES="3,1")
    assert said == [[2]]
    assert contexts(four) == [[3]]


def test_copies_arrive(run):
    said = run("""
x = torch.arange(5)
say(x.cuda().clone().cpu().tolist(), x.to("cuda:1").to("cuda:2").cpu().tolist(), x.pin_memory().cuda().tolist())
""")
    assert said == [[[0, 1, 2, 3, 4]] * 3]


def test_streams_and_events(run):
    said = run("""
stream, start, end = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
with torch.cuda.stream(stream):
    start.record()
    torch.ones(100, device="cuda") + 1
    end.record()
stream.synchronize()
torch.cuda.synchronize()
say(start.elapsed_time(end) >= 0, end.query())
""")
    assert said == [[True, True]]


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))", (16, 8)),
        ("torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU())", (4, 3, 32, 32)),
        ("torch.nn.TransformerEncoderLayer(32, 4, batch_first=True)", (2, 5, 32)),
    ],
    ids=["linear", "convolution", "attention"],
)
def test_a_model_is_trained_on_one_gpu(four, run, model, shape):
    run(f"train({model}.cuda(), *{shape})")
    assert contexts(four) == [[0]]
    assert missing(four) == set()


@pytest.mark.parametrize("layer", ["LSTM(8, 16, num_layers=2, bidirectional=True)", "GRU(8, 16)"])
def test_a_recurrent_layer_is_trained(four, run, layer):
    run(f"""
layer = torch.nn.{layer}.cuda()
layer(torch.randn(5, 4, 8, device="cuda"))[0].sum().backward()
""")
    assert missing(four) == set()


def test_a_model_in_data_parallel_has_every_gpu(four, run):
    run("train(torch.nn.DataParallel(torch.nn.Linear(8, 4).cuda()), 16, 8)")
    assert contexts(four) == [[0, 1, 2, 3]]


def test_a_captured_graph_is_replayed(run):
    said = run("""
graph, x = torch.cuda.CUDAGraph(), torch.ones(10, device="cuda")
with torch.cuda.graph(graph):
    y = x + 1
graph.replay()
say(list(y.shape))
""")
    assert said == [[[10]]]


def test_a_fraction_of_the_memory_is_a_limit(four, run):
    said = run("""
torch.cuda.set_per_process_memory_fraction(0.25)
for gib in (9, 11):
    try:
        torch.empty(gib * 2**30, dtype=torch.uint8, device="cuda")
        say(gib)
    except torch.cuda.OutOfMemoryError:
        say("exhausted")
    torch.cuda.empty_cache()
""")
    assert said == [[9], ["exhausted"]]
    assert [call.bytes for call in four.calls(call="allocate")] == [9 * GIB]


def test_what_does_not_fit_beside_others_is_an_error_and_no_crash(four, run):
    four.change(0, processes={5004242: "30GiB"})
    said = run("""
try:
    torch.empty(12 * 2**30, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError:
    say("exhausted")
""")
    assert said == [["exhausted"]]


def test_workers_of_a_loader_do_not_touch_a_gpu(four, run):
    said = run("""
if __name__ == "__main__":
    data = torch.utils.data.TensorDataset(torch.randn(32, 8))
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, pin_memory=True)
    say(sum(len(batch.cuda(non_blocking=True)) for (batch,) in loader))
""")
    assert said == [[32]]
    assert contexts(four) == [[0]]


def test_a_spawned_child_has_its_own_gpu_and_a_forked_one_of_an_initialised_parent_has_none(four, run):
    said = run("""
def child(gpu):
    try:
        torch.zeros(1, device=f"cuda:{gpu}")
        say(gpu)
    except RuntimeError as error:
        say(str(error).split(".")[0])

if __name__ == "__main__":
    torch.zeros(1, device="cuda")
    for method in ("spawn", "fork"):
        process = torch.multiprocessing.get_context(method).Process(target=child, args=(1,))
        process.start()
        process.join()
""")
    assert said == [[1], ["Cannot re-initialize CUDA in forked subprocess"]]
    assert contexts(four) == [[0], [1]]


def test_ranks_of_torchrun_train_each_on_its_own_gpu(four, run):
    said = run(
        """
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
torch.distributed.init_process_group("gloo")
train(torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4).cuda(), device_ids=[rank]), 16, 8)
torch.distributed.destroy_process_group()
""",
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
    )
    assert said == []
    # CUDA 12 makes a context where a thread goes back to device 0, as one of Gloo's does: rank 1 has one there too.
    allocated = {call.pid: call.gpu for call in four.calls(call="allocate")}
    assert sorted(allocated.values()) == [0, 1]


def test_a_function_that_nobody_wrote_fails_and_is_in_the_log(four, run):
    said = run("""
try:
    torch.linalg.svd(torch.eye(4, device="cuda"))
except RuntimeError:
    say("failed")
""")
    assert said == [["failed"]]
    assert missing(four) != set()
