"""Which GPU a PyTorch script is about to name, from its command line and its text."""

from __future__ import annotations

from pathlib import Path

import pytest

from autogpu.frameworks.torch.names import named_ordinal

SAYS_CUDA = 'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")\n'
CUDA_2 = 'model.to("cuda:2")\n'


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("--gpu 2", 2),
        ("--gpu=2", 2),
        ("-gpu 3", 3),
        ("--gpu_id 1 --epochs 90", 1),
        ("--gpu-id 1", 1),
        ("--device cuda:2", 2),
        ("--device=cuda:2", 2),
        ("--device 2", 2),
        ("--cuda-device 1", 1),
        ("device=2", 2),
        ("trainer.device=cuda:1 lr=3", 1),
        ("cuda:3", 3),
        ("--gpu 2 --device cuda:2", 2),
        # More than one, or none.
        ("--gpu 1 --device cuda:2", 0),
        ("--gpu 0", 0),
        # A yes, a count, a list: not a GPU's number.
        ("--cuda 1", 0),
        ("-g 2", 0),
        ("--gpu -1", 0),
        ("--gpu True", 0),
        ("--gpu 2 --device cuda", 0),
        ("--gpu 0,1", 0),
        ("--gpu", 0),
        ("--gpus 2", 0),
        ("--n-gpu 2", 0),
        ("--num_gpus=2", 0),
        ("--gpu-memory 2", 0),
        ("--gpu two", 0),
        ("--gpu 99999", 0),
        ("--seed 2", 0),
        ("--device cuda", 0),
        ("--device_map=2", 0),
        ("", 0),
    ],
)
def test_the_command_line_names_it(words, number):
    assert named_ordinal(words.split(), "") == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (CUDA_2, 2),
        ("model.to('cuda:2')", 2),
        ("model.cuda(2)", 2),
        ("torch.device('cuda', 2)", 2),
        ("torch.device('cuda', index=2)", 2),
        ('torch.device("cuda:2" if torch.cuda.is_available() else "cpu")', 2),
        ("torch.cuda.set_device(2)", 2),
        ("torch.cuda.set_device('cuda:2')", 2),
        ("with torch.cuda.device(2):", 2),
        ("parser.add_argument('--gpu', type=int, default=2)", 2),
        ("parser.add_argument(\n    '--device',\n    default='cuda:2',\n)", 2),
        # It is the current one, for all that says "cuda" after that.
        ("torch.cuda.set_device(2)\nmodel.cuda()\nx.to('cuda')", 2),
        ("parser.add_argument('--gpu', default=2)\ntorch.device('cuda', options.gpu)", 2),
        ("device = 'cuda:2'\ntorch.cuda.set_device(device)\nmodel.cuda()", 2),
        ("torch.cuda.set_device(device=2)", 2),
        ("model.cuda(device=2)", 2),
        # Both are used.
        (CUDA_2 + "x.to('cuda', non_blocking=True)", 0),
        (CUDA_2 + "x.cuda(non_blocking=True)", 0),
        ("parser.add_argument('--gpu', default='1,2')", 0),
        (SAYS_CUDA + CUDA_2, 0),
        (CUDA_2 + "x.cuda()", 0),
        ("a.to('cuda:0')\nb.to('cuda:1')", 0),
        ("torch.cuda.set_device(rank)", 0),
        ("x.to(f'cuda:{rank}')", 0),
        # Not said at all.
        (SAYS_CUDA, 0),
        ("# " + CUDA_2, 0),
        (SAYS_CUDA + "x = 1  # or torch.cuda.set_device(2)\n", 0),
        ("parser.add_argument('--gpus', default=2)", 0),
        ("parser.add_argument('--gpu')\nparser.add_argument('--depth', default=2)", 0),
        ("", 0),
    ],
)
def test_the_text_names_it(text, number):
    assert named_ordinal([], text) == number


USES_NUMBER = 'device = torch.device("cuda", int(args.gpu))\n'


def test_the_command_line_comes_first():
    assert named_ordinal(["--gpu", "1"], CUDA_2 + USES_NUMBER) == 1
    assert named_ordinal(["--seed", "1"], CUDA_2) == 2
    # It says something else than the text.
    assert named_ordinal(["--device", "cuda"], "parser.add_argument('--device', default='cuda:1')") == 0
    assert named_ordinal(["--gpu", "0,1"], "parser.add_argument('--gpu', default=1)") == 0


@pytest.mark.parametrize(
    "use",
    [
        USES_NUMBER,
        'x.to(f"cuda:{args.gpu}")',
        'x.to("cuda:" + args.gpu)',
        'x.to("cuda:%s" % args.gpu)',
        'x.to("cuda:{}".format(args.gpu))',
        "torch.cuda.set_device(args.gpu)",
        "with torch.cuda.device(args.gpu):",
        "model.cuda(args.gpu)",
        # In another module.
        "main()",
    ],
)
def test_a_number_of_the_command_line_counts_where_the_text_can_use_it(use):
    assert named_ordinal(["--gpu", "2"], use) == 2


@pytest.mark.parametrize(
    "use",
    [
        'device = torch.device("cuda" if args.gpu else "cpu")\nx.to(device)',
        'os.environ["CUDA_VISIBLE_DEVICES"] = args.gpu\nx.to("cuda", non_blocking=True)',
        "model.cuda(non_blocking=True)",
        "if torch.cuda.is_available(): model.cuda()",
    ],
)
def test_it_does_not_where_the_text_asks_for_a_gpu_without_a_number(use):
    assert named_ordinal(["--gpu", "2"], use) == 0
    assert named_ordinal(["--device", "cuda:2"], use) == 2


def test_what_a_script_has_put_among_its_arguments_may_be_anything():
    assert named_ordinal([Path("config.yaml"), 2, None, "--gpu", 3], "") == 3


def test_the_time_for_any_text_is_linear():
    named_ordinal(["-" * 100_000, "a." * 50_000], "'--gpu'" * 20_000 + "'cuda', " * 20_000 + " #" * 50_000)
