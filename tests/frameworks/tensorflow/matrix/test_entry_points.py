"""Each TensorFlow function that makes GPU devices applies the policy, takes a lease, and numbers the GPUs alike.

The tests check the calls to the driver and the limits that TensorFlow's devices report.
"""

import ast

import pytest

from tests.support.tensorflow_runner import SESSIONS, script

pytestmark = pytest.mark.turns(4)

IDLEST = 3

ENTRY_POINTS = {
    "session": "session()",
    "session-without-a-proto": "with tf.Graph().as_default(): show(v1.Session().list_devices())",
    "interactive": "v1.disable_eager_execution()\nshow(v1.InteractiveSession(config=v1.ConfigProto()).list_devices())",
    "server": "server = v1.train.Server.create_local_server(); session(server.target)",
    "server-with-a-proto": "session(v1.train.Server.create_local_server(config=v1.ConfigProto()).target)",
    "server-def": "first = v1.train.Server.create_local_server(start=False).server_def\n"
    "del first.default_session_config.gpu_options.experimental.virtual_devices[:]\n"
    "session(v1.train.Server(first, config=v1.ConfigProto()).target)",
    "eager": "eager()\nshow(device_lib.list_local_devices()[:0] + v1.Session().list_devices())",
}
# TensorFlow 2.16, which comes with Keras 3, no longer has these.
UP_TO_2_15 = {
    "keras": """
v1.disable_eager_execution()
v1.keras.backend.set_session(v1.Session(config=v1.ConfigProto(gpu_options=Options(allow_growth=True))))
show(v1.keras.backend.get_session().list_devices())
""",
    "estimator": """
class Show(v1.train.SessionRunHook):
    def after_create_session(self, session, coord):
        show(session.list_devices())
        print(leased(), flush=True)
        os._exit(0)  # before the first step: what is computed is not the point

def model(features, mode):
    step = v1.assign_add(v1.train.get_global_step(), 1)
    return v1.estimator.EstimatorSpec(mode, loss=tf.constant(0.0), train_op=step)

data = lambda: v1.data.Dataset.from_tensors(tf.constant([1.0]))
# On the CPU: not every simulated GPU has kernels.
config = tf.estimator.RunConfig(device_fn=lambda op: "/CPU:0")
estimator = v1.estimator.Estimator(model, model_dir=os.getcwd() + "/model", config=config)
estimator.train(data, hooks=[Show()], steps=1)
""",
}


@pytest.fixture
def run(with_autogpu, lease_folder):
    return lambda text, **environ: with_autogpu(SESSIONS + text + "\n", TF_CPP_MIN_LOG_LEVEL="3", **environ)


@pytest.mark.parametrize("entry_point", [*ENTRY_POINTS, *UP_TO_2_15])
def test_entry_point_takes_a_lease_and_applies_the_policys_limit(run, server, version, entry_point):
    if entry_point in UP_TO_2_15 and version.number >= (2, 16):
        pytest.skip("Keras 3 has no sessions, and estimators have gone")
    text = {**ENTRY_POINTS, **UP_TO_2_15}[entry_point]
    ran = run(text + "\nprint(leased())", AUTOGPU_LIMIT="2GiB")
    *_, limits, leased = ran.stdout.splitlines()
    assert (limits, ran.contexts) == ("[2048]", [IDLEST])
    assert ast.literal_eval(leased) == {server.gpus[IDLEST].uuid: 2.5}
    assert len(ran.said) == 1
    assert "memory limited to 2048 MiB, allocated as needed" in ran.said[0]


# The GPU numbers are left out, because autogpu changes the order of the GPUs.
LISTING = """
def fields(device):
    kind = device.physical_device_desc.partition("pci")[0].partition("name")[2]
    place = device.locality
    return device.device_type, kind, bool(device.incarnation), place.bus_id, place.HasField("links")
listed = device_lib.list_local_devices()
print(sorted(map(fields, listed)))
print(tf.test.gpu_device_name(), tf.test.is_gpu_available(), tf.test.is_gpu_available(False, (9, 0)))
print(leased())
print(sorted((device.device_type, device.memory_limit >> 30) for device in listed))
"""


def test_device_listing_is_as_without_autogpu_and_claims_nothing(run):
    plain, ran = (run(LISTING, AUTOGPU=switch) for switch in "01")
    *shown, sizes = ran.stdout.splitlines()
    *wanted, plain_sizes = plain.stdout.splitlines()
    assert (shown, shown[-1], ran.contexts, ran.said) == (wanted, "None", [], [])
    for (_, here), (_, there) in zip(ast.literal_eval(sizes), ast.literal_eval(plain_sizes)):
        # autogpu estimates how much memory TensorFlow would take; the estimate may be 2 GiB off.
        assert abs(here - there) <= 2


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param("eager(); session(); session(visible_device_list='0')", id="eager-first"),
        pytest.param("session(per_process_gpu_memory_fraction=0.3); eager(); session()", id="fraction-first"),
        pytest.param(
            "session(); tf.config.experimental.set_visible_devices(gpus, 'GPU'); eager()",
            id="all-gpus-visible-in-between",
        ),
        pytest.param(
            "tf.config.experimental.set_visible_devices(gpus, 'GPU'); session(); eager()", id="all-gpus-visible-first"
        ),
        pytest.param("session(device_count={'GPU': 1}); eager(); session()", id="device-count-1-first"),
        pytest.param("session(device_count={'GPU': 0}); eager(); session()", id="device-count-0-first"),
        pytest.param(
            "limits = [tf.config.experimental.VirtualDeviceConfiguration(memory_limit=1024)] * 2\n"
            "tf.config.experimental.set_virtual_device_configuration(gpus[0], limits)\n"
            "session(allow_growth=True); eager()",
            id="logical-gpus-first",
        ),
    ],
)
@pytest.mark.parametrize("split", [{}, {"AUTOGPU_VIRTUAL_GPUS": "2", "AUTOGPU_LIMIT": "2GiB"}], ids=["whole", "split"])
def test_eager_and_sessions_of_one_process_see_the_same_gpus(run, version, steps, split):
    contexts = set(run(steps, AUTOGPU_COUNT="2", **split).contexts)
    # TensorFlow 1.15 has XLA_GPU devices, and so can't add a GPU after its first session.
    assert contexts >= ({IDLEST} if "'GPU': 1" in steps and version.number < (2, 0) else {1, IDLEST})


GRAPH = """
with tf.Graph().as_default():
    for name in {names}:
        with tf.device(name):
            tf.raw_ops.Empty(shape=[2], dtype=tf.float32)
    # What comes with a session is on the CPU: not every simulated GPU has kernels.
    with tf.device("/cpu:0"):
        {step}
        made = {session}
"""
SESSIONS_OF_A_GRAPH = {
    "session": "v1.Session()",
    "session-with-a-proto": "v1.Session(config=v1.ConfigProto())",
    "interactive": "v1.InteractiveSession()",
    "monitored-training": "v1.train.MonitoredTrainingSession()",
    "monitored-training-with-a-proto": "v1.train.MonitoredTrainingSession(config=v1.ConfigProto())",
    "monitored": "v1.train.MonitoredSession()",
    "singular": "v1.train.SingularMonitoredSession()",
    "supervisor": "v1.train.Supervisor(logdir=None).prepare_or_wait_for_session()",
}


@pytest.mark.parametrize("session", SESSIONS_OF_A_GRAPH)
def test_three_towers_get_both_idle_gpus_with_every_kind_of_session(run, session):
    names, step = ["/gpu:0", "/gpu:1", "/gpu:2"], "v1.train.get_or_create_global_step()"
    graph = GRAPH.format(names=names, step=step, session=SESSIONS_OF_A_GRAPH[session])
    ran = run(graph + "print(len(leased()))")
    # Two GPUs are idle. The third tower gets a logical GPU on one of them.
    assert (ran.stdout.splitlines()[-1], set(ran.contexts)) == ("2", {1, IDLEST})


EAGER = "v1.enable_eager_execution()\nwith tf.device('{}'): tf.raw_ops.Empty(shape=[2], dtype=tf.float32)\n"
LIMITS = "show(v1.Session(graph=tf.Graph()).list_devices())\n"


@pytest.mark.parametrize(
    ("names", "session", "limits"),
    [
        (["/gpu:2"], "session", [1, 1, 2046]),
        (["/gpu:2"], "session-with-a-proto", [1, 1, 2046]),
        (["/gpu:0", "/gpu:2"], "session", [1023, 1, 1023]),
        (["/gpu:1", None], "session", [1024, 1024]),
    ],
    ids=["one-name", "one-name-with-a-proto", "two-names", "one-name-and-unplaced-tensors"],
)
def test_limit_is_divided_among_the_gpus_that_the_script_names(run, names, session, limits):
    graph = GRAPH.format(names=names, step="", session=SESSIONS_OF_A_GRAPH[session])
    used = "".join(
        f"with tf.Graph().as_default(), tf.device('/gpu:{number}'):\n"
        f"    v1.Session().run(tf.raw_ops.Empty(shape=[{mib * 9 // 10}, 1 << 18], dtype=tf.float32).op)\n"
        for number, mib in enumerate(limits)
    )
    ran = run(graph + LIMITS + used, AUTOGPU_LIMIT="2GiB", AUTOGPU_COUNT="1")
    assert (ran.stdout.splitlines()[-1], ran.contexts) == (str(limits), [IDLEST])
    assert "memory limited to " + " + ".join(map(str, limits)) + " MiB" in ran.said[0]


ANYWHERE = """
for name in ("/gpu:2", "/gpu:1", None):
    with tf.device(name):
        print(tf.raw_ops.Empty(shape=[{mib}, 1 << 18], dtype=tf.float32).device[-5:])
"""


def test_eager_tensors_have_the_whole_limit_under_any_device_name(run):
    ran = run(EAGER.format("/gpu:2") + ANYWHERE.format(mib=2048 * 9 // 10), AUTOGPU_LIMIT="2GiB")
    assert (ran.stdout.splitlines(), ran.contexts) == (["GPU:0"] * 3, [IDLEST])
    assert "memory limited to 2048 MiB" in ran.said[0]


SHARDS = """
from tensorflow.python.data.ops import multi_device_iterator_ops as iterators
kind = getattr(iterators, "OwnedMultiDeviceIterator", None) or iterators.MultiDeviceIteratorV2
names = ["/gpu:%d" % number for number in range(4)]
shards = kind(tf.data.Dataset.range(8), names)
print([(element.device[-5:], int(element)) for element in shards.get_next()])
print(int(shards.get_next("/gpu:2")), shards._devices == names)
"""


def test_every_shard_of_a_dataset_is_on_the_gpu_of_the_process(run, version):
    if not version.launches_kernels:
        pytest.skip("an element is copied by a kernel")
    ran = run(EAGER.format("/gpu:0") + SHARDS)
    assert ran.stdout.splitlines()[-2:] == ["[('GPU:0', 0), ('GPU:0', 1), ('GPU:0', 2), ('GPU:0', 3)]", "6 True"]


READS_MEMORY = """
read = getattr(tf.config.experimental, "{}", lambda device: "lacks it")
print(read("GPU:1"))
try:
    read("GPU:4")
except ValueError:
    print("raised")
"""


@pytest.mark.parametrize(
    ("reading", "unused", "since"),
    [
        ("get_memory_info", {"current": 0, "peak": 0}, (2, 5)),
        ("get_memory_usage", 0, (2, 4)),
        ("reset_memory_stats", None, (2, 5)),
    ],
)
def test_memory_can_be_read_before_any_other_use_of_a_gpu(run, version, reading, unused, since):
    lines = [str(unused), "raised"] if version.number >= since else ["lacks it"]
    assert run(READS_MEMORY.format(reading)).stdout.splitlines() == lines


def test_tensorflow_has_every_function_that_autogpu_hooks(with_autogpu):
    ran = with_autogpu(
        script(
            "from autogpu.frameworks.tensorflow import TensorFlow",
            "print(dict(TensorFlow.find_hooks().missing), len(TensorFlow.find_hooks().found))",
        )
    )
    assert (ran.stdout, ran.said) == ("{} 7\n", [])
