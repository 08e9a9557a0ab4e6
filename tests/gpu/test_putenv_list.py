"""A real driver obeys the list of GPUs that autogpu writes with ``putenv`` before CUDA starts."""

import json
import os
import sys

import pytest

from tests.gpu.conftest import answer, needs_driver
from tests.support.framework_jobs import HOLD

pytestmark = [pytest.mark.gpu, needs_driver, pytest.mark.timeout(300), pytest.mark.xdist_group("gpu")]

# Loads CUDA, writes a list, starts CUDA, writes another list, and starts CUDA again.
WRITE = """
import ctypes, json, os, sys
from autogpu.devices import cuda as driver
from autogpu.visibility import write_for_cuda
cuda = ctypes.CDLL("libcuda.so.1")
before, seen = dict(os.environ), []
for value in json.loads(sys.argv[1]):
    write_for_cuda(value)
    cuda.cuInit(0)
    seen.append(driver.visible_uuids() or ())
assert dict(os.environ) == before
print(json.dumps(seen))
"""
VALUES = {
    "reversed": lambda uuids: uuids[::-1],
    "first-gpu": lambda uuids: uuids[:1],
    "last-gpu": lambda uuids: uuids[-1:],
    "no-gpu": lambda uuids: [],
    "minus-one": lambda uuids: ["-1"],
}

# A script that prints CUDA_VISIBLE_DEVICES before and after its first use of a GPU, from os.environ and C's getenv.
LISTS = """
import ctypes, json, os
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
def lists():
    return os.environ.get("CUDA_VISIBLE_DEVICES"), (getenv(b"CUDA_VISIBLE_DEVICES") or b"").decode()
import {framework}
before = lists()
{script}
print(json.dumps([before, lists()]), flush=True)
"""


@pytest.mark.parametrize("inherited", [None, "-1"], ids=["unset-at-start", "no-gpu-at-start"])
@pytest.mark.parametrize("value", VALUES)
def test_cuda_obeys_only_the_list_written_before_its_start(machine, record_property, value, inherited):
    uuids = [gpu.uuid for gpu in machine.devices]
    expected = [uuid for uuid in VALUES[value](uuids) if uuid != "-1"]
    environ = {**os.environ, **({} if inherited is None else {"CUDA_VISIBLE_DEVICES": inherited})}
    lists = [",".join(VALUES[value](uuids)), ",".join(uuids) if not expected else ""]
    seen, later = json.loads(answer(sys.executable, "-c", WRITE, json.dumps(lists), environ=environ))
    assert seen == expected
    if expected:
        assert later == expected, "CUDA read the list again after its start"
    else:
        # autogpu does not depend on this number.
        record_property("measured", f"a second cuInit after {lists[0]!r} finds {len(later)} GPUs")


def test_os_environ_lists_the_gpus_from_their_first_use_on(machine, jobs, framework, record_property):
    out, errors = jobs.start(LISTS.format(framework=framework, script=HOLD[framework])).communicate("\n", timeout=240)
    assert out.startswith("ready cuda:0"), errors
    (shown_before, _), (shown, cudas) = json.loads(out.splitlines()[-1])
    assert shown_before is None
    if len(machine.devices) == 1:
        assert (shown, cudas) == (None, ""), "one GPU needs no list"
        return
    index = {gpu.uuid: str(gpu.index) for gpu in machine.devices}
    assert sorted(cudas.split(",")) == sorted(index)
    assert shown == ",".join(index[uuid] for uuid in cudas.split(","))
    record_property("measured", f"{framework} finds {shown}")
