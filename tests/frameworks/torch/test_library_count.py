"""The number of GPUs that a library gets if it would use all of them."""

import pytest

from autogpu.frameworks.torch.libraries import count_for_library


@pytest.mark.parametrize(
    ("visible", "wanted", "more", "count"),
    [
        pytest.param(4, 1, {}, 1, id="policy-of-one"),
        pytest.param(4, 2, {}, 2, id="policy-of-two"),
        pytest.param(2, 3, {}, 2, id="fewer-gpus-than-the-policy-asks-for"),
        pytest.param(4, "all", {}, 4, id="policy-of-all"),
        pytest.param(4, 0, {}, 1, id="no-gpu-but-the-process-sees-some"),
        pytest.param(0, 1, {}, 0, id="no-gpu"),
        pytest.param(4, 1, {"is_set": True}, 4, id="list-or-number-of-the-user"),
        pytest.param(4, 2, {"claimed": (0,)}, 1, id="claim-smaller-than-the-policy-asks-for"),
        pytest.param(4, 1, {"claimed": (0, 1, 2)}, 3, id="claim-larger-than-the-policy-asks-for"),
        pytest.param(4, 1, {"claimed": (2,)}, 4, id="claim-under-the-scripts-own-number"),
        pytest.param(4, 1, {"claimed": ()}, 4, id="gpus-not-chosen-by-autogpu"),
    ],
)
def test_library_that_uses_all_gpus_gets_as_many_as_autogpu_allows(visible, wanted, more, count):
    assert count_for_library(visible, wanted, **more) == count
