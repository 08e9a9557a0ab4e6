"""Which GPU a PyTorch program is about to name, from its command line and its text."""

from __future__ import annotations

from pathlib import Path

import pytest

from autogpu.frameworks.torch.names import named
from autogpu.frameworks.torch.text import local_imports, read

SAYS_CUDA = 'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")\n'
CUDA_2 = 'model.to("cuda:2")\n'

# What a program does with a number.
USES = (
    'device = torch.device("cuda", {})',
    'device = torch.device("cuda", index=int({}))',
    'x.to(f"cuda:{{{}}}")',
    'x.to("cuda:" + str({}))',
    'x.to("cuda:%s" % {})',
    'x.to("cuda:{{}}".format({}))',
    "torch.cuda.set_device({})",
    "with torch.cuda.device({}): pass",
    "model.cuda({})",
    "model.cuda(device={})",
    "trainer = Trainer(accelerator='gpu', devices=[{}])",
    "wrapped = DistributedDataParallel(model, device_ids=[int({})])",
    'device = f"cuda:{{{}}}" if torch.cuda.is_available() else "cpu"',
)


def declares(*names, **fields):
    rest = "".join(f", {name}={value!r}" for name, value in fields.items())
    return f"parser.add_argument({', '.join(map(repr, names))}{rest})\nargs = parser.parse_args()\n"


def device_of(name):
    return f"device = torch.device(args.{name})\n"


GPU = declares("--gpu", default=0) + 'device = torch.device("cuda", args.gpu)\n'
DEVICE = declares("--device", default="cuda") + device_of("device")
FIRE = "def main(which=0, epochs=3):\n    x.to(f'cuda:{which}')\nfire.Fire(main)\n"
CLICK = '@click.command()\n@click.option("--card")\ndef main(card):\n    torch.cuda.set_device(card)\nmain()\n'
TYPER = "@app.command()\ndef main(card: int = typer.Option(1)):\n    x.to(f'cuda:{card}')\napp()\n"
ABSL = 'flags.DEFINE_integer("card", 0, "which")\ndevice = torch.device("cuda", FLAGS.card)\n'
HYDRA = '@hydra.main(config_name="c")\ndef main(cfg):\n    model.to(cfg.trainer.device)\nmain()\n'
IDS = (
    declares("--gpu_ids", default="0")
    + "ids = [int(each) for each in args.gpu_ids.split(',')]\ntorch.cuda.set_device(ids[0])\n"
)
BY_CALLS = (
    declares("--gpu")
    + "def place(where):\n    return torch.device('cuda', where)\ndef train(device):\n    model.to(device)\n"
    + "train(place(args.gpu))\n"
)

PASSED_ON = "def train({0}):\n    torch.cuda.set_device({0})\ndef work({1}):\n    train({1})\n"


def ordinal(words, *texts):
    return named(words.split(), read([text.encode() for text in texts])).ordinal


@pytest.mark.parametrize(
    ("words", "text", "number"),
    [
        ("--gpu 2", GPU, 2),
        ("--gpu=2", GPU, 2),
        ("--gpu cuda:2", GPU, 2),
        ("--epochs 90 --gpu 1 --seed 3", GPU, 1),
        ("--gpu 1 --gpu 2", GPU, 2),
        ("--device cuda:2", DEVICE, 2),
        ("--device=cuda:2", DEVICE, 2),
        ("--device 2", DEVICE, 2),
        ("-g 2", declares("-g", "--gpu") + device_of("gpu"), 2),
        ("-g2", declares("-g", "--gpu") + device_of("gpu"), 2),
        ("--use-gpu 1", declares("--use-gpu") + device_of("use_gpu"), 1),
        ("--which 2", declares("--which", dest="card") + device_of("card"), 2),
        ("3", declares("card") + device_of("card"), 3),
        ("train.csv 3", declares("data") + declares("card") + device_of("card"), 3),
        ("--gpu_ids 3", IDS, 3),
        ("--gpu 3", BY_CALLS, 3),
        ("--which 2", FIRE, 2),
        ("--which=2", FIRE, 2),
        ("--card 2", CLICK, 2),
        ("--card 2", TYPER, 2),
        ("--card 2", ABSL, 2),
        ("trainer.device=cuda:1 lr=3", HYDRA, 1),
        ("device=2", HYDRA, 2),
        ("--n 2", declares("--n") + 'options = vars(args)\nx.to(f"cuda:{options["n"]}")'.replace('["n"]', "['n']"), 2),
        ("2", 'x.to(torch.device("cuda", int(sys.argv[1])))', 2),
        ("--gpu 2", "device = 'cuda:' + sys.argv[2]\nx.to(device)", 2),
        # The text says nothing of it, or something else.
        ("--gpu 2", "", 0),
        ("--device cuda:2", "", 0),
        ("--gpu 2", SAYS_CUDA, 0),
        ("--gpu 2", declares("--gpu") + 'device = torch.device("cuda" if args.gpu else "cpu")', 0),
        ("--gpu 2", declares("--gpu") + 'os.environ["CUDA_VISIBLE_DEVICES"] = args.gpu\nx.to("cuda")', 0),
        ("--gpu 2", declares("--gpu") + "Trainer(devices=args.gpu)", 0),
        ("--gpu 2", declares("--gpu", action="store_true") + device_of("gpu"), 0),
        ("--gpus 2", declares("--gpus") + "for each in range(args.gpus):\n    x.to(f'cuda:{each}')", 0),
        ("--epochs 2", FIRE, 0),
        ("--seed 2", GPU, 0),
        # More than one, or none.
        ("--gpu 1 --device cuda:2", GPU + DEVICE, 0),
        ("--gpu 0", GPU, 0),
        ("--gpu -1", GPU, 0),
        ("--gpu True", GPU, 0),
        ("--gpu 0,1", GPU, 0),
        ("--gpu_ids 0,1", IDS, 0),
        ("--gpu", GPU, 0),
        ("--gpu two", GPU, 0),
        ("--gpu 99999", GPU, 0),
        ("--device cuda", DEVICE, 0),
        ("--device cpu", DEVICE, 0),
        ("", GPU, 0),
    ],
)
def test_the_command_line_names_it(words, text, number):
    assert ordinal(words, text) == number


@pytest.mark.parametrize("use", USES)
def test_a_number_counts_where_the_text_uses_it_as_a_gpus(use):
    text = declares("--card")
    assert ordinal("--card 2", text + use.format("args.card")) == 2
    assert ordinal("--card 2", text + "card = args.card\n" + use.format("card")) == 2
    assert ordinal("", use.format("3")) == 3
    # In a module of its own beside the script.
    assert ordinal("--card 2", text, f"def work(options):\n    {use.format('options.card')}\n") == 2


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (CUDA_2, 2),
        ("model.to('cuda:2')", 2),
        ('torch.device("cuda:2" if torch.cuda.is_available() else "cpu")', 2),
        ("torch.cuda.set_device('cuda:2')", 2),
        ("torch.cuda.set_device(device=2)", 2),
        ("CARD = 2\nmodel.cuda(CARD)", 2),
        ("def work(card=2):\n    model.cuda(card)\nwork()", 2),
        (declares("--gpu", type="int", default=2) + device_of("gpu"), 2),
        (declares("--device", default="cuda:2") + device_of("device"), 2),
        # It is the current one, for all that says "cuda" after that.
        ("torch.cuda.set_device(2)\nmodel.cuda()\nx.to('cuda')", 2),
        ("device = 'cuda:2'\ntorch.cuda.set_device(device)\nmodel.cuda()", 2),
        ("with torch.cuda.device(2):\n    model.cuda()", 2),
        (CUDA_2 + "with torch.autocast('cuda'):\n    pass", 2),
        (CUDA_2 + "assert model.device.type == 'cuda'", 2),
        (CUDA_2 + "def helper(rank):\n    return f'cuda:{rank}'", 2),
        # Both are used.
        (CUDA_2 + "x.to('cuda', non_blocking=True)", 0),
        (CUDA_2 + "x.cuda(non_blocking=True)", 0),
        (SAYS_CUDA + CUDA_2, 0),
        (CUDA_2 + "x.cuda()", 0),
        ("a.to('cuda:0')\nb.to('cuda:1')", 0),
        ("Trainer(devices=[0, 1])", 0),
        ("torch.cuda.set_device(rank)", 0),
        ("x.to(f'cuda:{rank}')", 0),
        # Not said at all.
        (SAYS_CUDA, 0),
        ("# " + CUDA_2, 0),
        ('"""Use "cuda:2"."""', 0),
        ("'cuda:2'", 0),
        (declares("--gpu", default=2), 0),
        (declares("--gpus", default=2) + "Trainer(devices=args.gpus)", 0),
        ("Trainer(devices=2)", 0),
        ("this is no Python: 'cuda:2'", 0),
        ("", 0),
    ],
)
def test_the_text_names_it(text, number):
    assert ordinal("", text) == number


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ("def work(rank):\n    torch.cuda.set_device(rank)\nspawn(work, nprocs=2)", True),
        ("def work(i):\n    x.to(f'cuda:{i}')\nfor i in range(2):\n    Process(target=work, args=(i,)).start()", True),
        (PASSED_ON.format("rank", "rank"), True),
        (PASSED_ON.format("rank", "i"), True),
        (PASSED_ON.format("rank", "i") + "def main(i):\n    work(i)\n    train(i)\n", True),
        ("torch.cuda.set_device(int(os.environ['LOCAL_RANK']))", True),
        ("model.cuda(pick())", True),
        (PASSED_ON.format("rank", "rank") + "train(2)", False),
        (SAYS_CUDA + "x.to(device)", False),
        ("def work(x, kind):\n    return x.to(kind)", False),
        (GPU, False),
        (CUDA_2, False),
        ("", False),
    ],
)
def test_the_text_uses_numbers_that_come_from_elsewhere(text, is_told):
    assert named([], read([text.encode()])).is_told is is_told


def test_what_a_script_has_put_among_its_arguments_may_be_anything():
    assert named([Path("config.yaml"), 2, None, "--gpu", 3], read([GPU.encode()])).ordinal == 3


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5_000 + ")" * 5_000,
        "x = " + "-" * 50_000 + "1",
        "x = " + "a." * 20_000 + "b",
        "a = b\nb = a\nx.cuda(a)",
        "def f(a):\n    return f(a)\nx.cuda(f(f))",
        "".join(f"a{i} = a{i + 1} or a{i + 2}\n" for i in range(2_000)) + "x.cuda(a0)",
        "x = f(" + "'cuda', " * 20_000 + ")",
        "\0",
        "parser.add_argument(*names)\nparser.add_argument()\nflags.DEFINE_integer()\nFire(3)",
        "def f(a, /, b=1, *c, d, e=2, **g): pass\nf(1, 2, 3, z=4)",
    ],
    ids=range(10),
)
def test_any_text_is_read_to_an_end(text):
    assert ordinal("--gpu 2", text) == 0


def test_a_texts_own_modules_are_those_that_it_imports():
    text = "import os, models.net\nfrom .parts import head\n  from lib.device import pick\n# import no\nimport3 = 3"
    assert local_imports(text.encode()) == ["os", "models/net", "parts", "lib/device"]
