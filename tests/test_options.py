"""The options of `convert`: all are checked before anything runs, and foreign ones are named."""

import inspect
from pathlib import Path

import pytest
import torch
from torch import nn

import t2t
from t2t.errors import BuildError, ConversionError, OptionError, T2TError
from t2t.options import _KINDS, FOREIGN

X = torch.zeros(2, 3)
OPTIONS = [
    name
    for name, parameter in inspect.signature(t2t.convert).parameters.items()
    if parameter.kind == inspect.Parameter.KEYWORD_ONLY
]


class Unrun(nn.Module):
    """Fails the test if its forward pass runs."""

    def forward(self, x):
        pytest.fail("the model ran before the options were checked")


def refused(words, **options):
    with pytest.raises(OptionError, match=words) as caught:
        t2t.convert(Unrun(), [X], **options)
    # People look for a TypeError where a keyword is unknown.
    assert isinstance(caught.value, TypeError | ConversionError)


def test_every_option_is_explicit_and_checked():
    assert set(OPTIONS) == set(_KINDS)
    assert not set(OPTIONS) & set(FOREIGN)


@pytest.mark.parametrize("name", FOREIGN)
def test_what_others_call_an_option_is_known(name):
    refused(f"no option '{name}': {FOREIGN[name][:10]}", **{name: True})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fp16_mode", "say fp16=True"),
        ("max_workspace_size", "say workspace="),
        ("int8_mode", "say int8=True, calibration=<"),
        ("enabled_precisions", "say fp16=True or bf16=True"),
        ("strict_type_constraints", "strongly typed"),
        ("keep_network", "say keep_program=True"),
        ("use_onnx", "no ONNX"),
        ("ir", "one way"),
        ("truncate_long_and_double", r"\.float\(\)"),
        ("require_full_compilation", "whole module"),
        ("log_level", "getLogger"),
    ],
)
def test_foreign_options_say_what_to_do(name, words):
    refused(words, **{name: 1})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fp61", r"did you mean fp16\?"),
        ("FP16", r"did you mean fp16\?"),
        ("min_shape", r"did you mean min_shapes\?"),
        ("maxShapes", r"did you mean max_shapes\?"),
        ("work_space", r"did you mean workspace\?"),
        ("ouput_names", r"did you mean output_names\?"),
        ("fp16mode", r"nor 'fp16_mode'\): say fp16=True"),
        ("zzz", "it has fp16, bf16, fp32_modules"),
    ],
)
def test_typos(name, words):
    refused(words, **{name: True})


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("fp16", 1, "fp16=1: it takes True or False"),
        ("fp16", "yes", "True or False"),
        ("bf16", None, "True or False"),
        ("tf32", 0, "True or False"),
        ("narrow_shapes", "auto", "True or False"),
        ("ignore_dropout", 1, "True or False"),
        ("keep_program", None, "True or False"),
        ("fp32_modules", "head", "list of submodules' names"),
        ("fp32_modules", [1], "list of submodules' names"),
        ("min_shapes", 3, "a shape for each input"),
        ("max_shapes", "1x3", "a shape for each input"),
        ("opt_shapes", torch.Size, "a shape for each input"),
        ("dynamic_shapes", True, "torch.export.Dim"),
        ("input_names", "x", "list of names"),
        ("output_names", [None], "list of names"),
        ("backend", 10, "tensorrt_rtx"),
        ("workspace", "1G", "number of bytes"),
        ("workspace", 0, "number of bytes"),
        ("workspace", True, "number of bytes"),
        ("workspace", 1e9, "number of bytes"),
        ("optimization_level", 6, "from 0"),
        ("optimization_level", -1, "from 0"),
        ("optimization_level", 2.5, "from 0"),
        ("compute_capabilities", "8.9", r'\["8.6", "8.9"\]'),
        ("compute_capabilities", [8.9], "list of compute"),
        ("timing_cache", 3, "path of a file"),
        ("timing_cache", Path(__file__).parent, "path of a file"),
        ("timing_cache", "no/such/directory/timing.cache", "directory that exists"),
        ("cache_dir", True, "path of a folder"),
        ("cache_dir", Path(__file__), "path of a folder"),
        ("configure", "fast", "IBuilderConfig"),
        ("progress", "bar", "True, False or None"),
    ],
)
def test_values_of_the_wrong_kind(option, value, words):
    refused(words, **{option: value})


def test_both_half_precisions():
    refused("give one of them", fp16=True, bf16=True)


def test_unknown_gpus_are_refused_first():
    with pytest.raises(BuildError, match=r"'99\.0' is unknown"):
        t2t.convert(Unrun(), [X], compute_capabilities=["99.0"])


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.ReLU, "ReLU is a class: convert an instance"),
        ("model.pth", "is a path: load the module first"),
        (Path("model.pth"), "is a path"),
        (3, "not int"),
        (None, "not NoneType"),
        ({"weight": X}, "not dict"),
    ],
)
@pytest.mark.parametrize("use", [t2t.convert, t2t.missing_operators, t2t.to_network])
def test_what_is_no_module(use, module, words):
    with pytest.raises(ConversionError, match=words):
        use(module, [X])


def test_a_converted_module_is_not_converted_again():
    converted = t2t.TRTModule(program=t2t.convert(nn.ReLU(), [X]).program)
    with pytest.raises(ConversionError, match="converted already"):
        t2t.convert(converted, [X])


def test_options_that_fit_are_taken(tmp_path):
    seen = []
    converted = t2t.convert(
        nn.Linear(3, 2).eval(),
        [X],
        fp16=True,
        workspace=1 << 28,
        optimization_level=2,
        tf32=True,
        refittable=False,
        compute_capabilities=("8.9",),
        timing_cache=tmp_path / "timing.cache",
        cache_dir=tmp_path / "engines",
        configure=seen.append,
        progress=False,
        input_names=["a"],
        output_names=("b",),
        keep_program=False,
    )
    assert seen
    assert converted.program is None
    assert converted.input_names == ["a"]
    assert converted.output_names == ["b"]
    assert converted.details["compute_capabilities"] == ["8.9"]


def test_errors_are_one_tree():
    assert issubclass(OptionError, T2TError)
    assert issubclass(OptionError, TypeError)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (lambda x: {"y": x.relu(), "sum": x.sum(-1)}, ["y", "sum"]),
        (lambda x: {"relu": x.sum(-1).exp(), "exp": x.relu()}, ["relu", "exp"]),
        (lambda x: {"x": x * 2, "x_1": x + 1}, ["x_2", "x_1"]),
    ],
    ids=["a layer's", "each other's layers'", "the input's"],
)
@pytest.mark.parametrize("options", [{}, {"max_batch_size": 4}])
def test_outputs_have_their_names_whatever_layers_are_called(module, names, options):
    converted = t2t.convert(module, [torch.zeros(2, 3)], **options)
    assert converted.output_names == names
    assert [info.name for info in converted.program.outputs] == names
    for seed in (0, 1):
        x = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed))
        got = converted.program.run([x])
        for name, wanted in zip(names, module(x).values(), strict=True):
            torch.testing.assert_close(got[name], wanted, rtol=1e-6, atol=1e-6)


def test_an_output_cannot_be_named_as_an_input():
    with pytest.raises(ConversionError, match="an input has the name 'x'"):
        t2t.convert(torch.relu, [torch.zeros(2)], input_names=["x"], output_names=["x"])
    named = t2t.convert(lambda x: x.relu(), [torch.zeros(2)], output_names=["relu"])
    assert named.program.outputs[0].name == "relu"
