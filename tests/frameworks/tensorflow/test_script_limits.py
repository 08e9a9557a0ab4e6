"""What a script allows itself of a GPU, and what others are promised there."""

from __future__ import annotations

import pytest

from tests.gpusim import Gpu
from tests.support.live_jobs import HOLD, claims

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

FRACTION = HOLD.replace(
    "with tf",
    "config = tf.compat.v1.ConfigProto()\n"
    "config.gpu_options.per_process_gpu_memory_fraction = float(sys.argv[1])\n"
    "tf.compat.v1.Session(config=config)\n"
    "with tf",
)


def test_what_scripts_allow_themselves_is_never_more_than_a_gpu_has(host, lease_folder):
    start = host(Gpu(memory="16GiB"), script=FRACTION)
    first, second = [start("0.6", AUTOGPU_LIMIT="2GiB", AUTOGPU_WAIT="0") for _ in range(2)]
    assert [first.ready(), second.ready()] == ["ready GPU:0"] * 2
    claimed = sorted(claims(lease_folder, start.server).values(), key=lambda claim: claim[0])
    assert claimed == [{0: 0.0}, {0: 10.1}]
    allowed = sorted((lines[0], status) for status, lines in (first.end(), second.end()))
    assert "memory limited by the script to 60% of each GPU" in allowed[0][0] + allowed[1][0]
    assert "whatever it asks for" in allowed[0][0] + allowed[1][0]
