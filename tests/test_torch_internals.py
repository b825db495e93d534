"""What t2t relies on of PyTorch's private names, one test for each."""

import ast
import logging
import operator
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from t2t import torch_internals as internals
from t2t.torch_internals import FakeTensor, FakeTensorMode, TorchDispatchMode

aten = torch.ops.aten
PACKAGE = Path(internals.__file__).parent

CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


class Seen(TorchDispatchMode):
    """Keeps what reaches the dispatcher."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[object] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operators.append(func)
        return func(*args, **(kwargs or {}))


@check
def FakeTensorMode_() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        x = torch.empty(2, 3)
        y = x @ torch.ones(3, 4)
    assert isinstance(y, FakeTensor)
    assert y.fake_mode is mode
    assert y.shape == (2, 4)
    assert y.fake_device == torch.device("cpu")
    # Its memory is known, though it has no data.
    assert internals.storage_address(x) == internals.storage_address(x.t())


@check
def no_modes() -> None:
    with Seen() as seen:
        with internals.no_modes():
            torch.ones(2).sin()
        assert not seen.operators
        torch.ones(2)
    assert seen.operators


@check
def constant_when_compiled() -> None:
    class Holder(torch.nn.Module):
        @internals.constant_when_compiled
        def kept(self) -> list[object]:
            return [Path(__file__).read_text()[:3], torch.ones(2)]  # no graph can hold that

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            text, y = self.kept()
            return x + y * len(text)

    x = torch.rand(2)
    module = Holder()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), module(x))


@check
def tensor_at() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.int64):
        x = torch.tensor([[1, 0, 1], [0, 0, 1]]).to(dtype)
        y = internals.tensor_at(x.data_ptr(), dtype, (2, 3), x.device)
        assert y.data_ptr() == x.data_ptr()
        assert torch.equal(x, y)
        assert y.is_contiguous()
        y.zero_()
        assert not x.any()
    with pytest.raises(RuntimeError, match="resiz"):
        y.resize_(7)
    assert internals.tensor_at(0, torch.float16, (0, 3), x.device).shape == (0, 3)
    assert internals.tensor_at(x.data_ptr(), dtype, (), x.device).item() == 0


@check
def failures_unlogged() -> None:
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    seen: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = seen.append  # type: ignore[method-assign]
    logger.addHandler(handler)

    def fail() -> None:
        with FakeTensorMode(), pytest.raises(RuntimeError):
            aten.mm.default(torch.empty(2, 3), torch.empty(4, 5))

    try:
        with internals.failures_unlogged():
            fail()
        assert not seen
        fail()
    finally:
        logger.removeHandler(handler)
    assert [record.levelname for record in seen] == ["ERROR"]
    assert not logger.filters


@check
def FakeTensor_() -> None:
    with FakeTensorMode():
        x = torch.empty(3)
    assert type(x) is FakeTensor
    with pytest.raises(RuntimeError):
        x.tolist()


@check
def DataDependentOutputException() -> None:
    with FakeTensorMode(), pytest.raises(internals.DataDependentOutputException) as caught:
        torch.empty(()).item()
    assert caught.value.func is aten._local_scalar_dense.default


@check
def DynamicOutputShapeException() -> None:
    with FakeTensorMode(), pytest.raises(internals.DynamicOutputShapeException) as caught:
        torch.empty(3).nonzero()
    assert caught.value.func is aten.nonzero.default


@check
def UnsupportedOperatorException() -> None:
    with torch.library._scoped_library("t2t_test", "DEF") as library:
        library.define("unknown_shape(Tensor x) -> Tensor")
        with FakeTensorMode(), pytest.raises(internals.UnsupportedOperatorException):
            torch.ops.t2t_test.unknown_shape(torch.empty(3))


@check
def TorchDispatchMode_() -> None:
    with Seen() as seen:
        torch.relu(torch.ones(2) + 1)
    assert seen.operators == [aten.ones.default, aten.add.Tensor, aten.relu.default]


@check
def DispatchMode() -> None:
    class Mode(internals.DispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen: list[object] = []
    operator, x = torch.ops.higher_order.cond, torch.ones(2)
    for _ in range(2):  # entered again, it is known already
        with Mode():
            [made] = operator(True, lambda x: (x + 1,), lambda x: (x - 1,), (x,))
        assert torch.equal(made, x + 1)
    # Inside of it the mode does not see itself.
    assert seen == [operator, operator]
    assert not Mode._should_skip_dynamo()


@check
def HigherOrderOperator() -> None:
    assert isinstance(torch.ops.higher_order.cond, internals.HigherOrderOperator)
    assert not isinstance(aten.add.Tensor, internals.HigherOrderOperator)


@check
def OpOverload() -> None:
    found = aten.max.dim
    assert isinstance(found, internals.OpOverload)
    assert found.overloadpacket is aten.max
    assert found.namespace == "aten"
    assert torch.Tag.pointwise in aten.add.Tensor.tags


@check
def OpOverloadPacket() -> None:
    assert isinstance(aten.max, internals.OpOverloadPacket)
    assert "dim" in aten.max.overloads()


@check
def OpNamespace() -> None:
    assert isinstance(aten, internals.OpNamespace)


@check
def rnn_functions() -> None:
    lstm, x, state = torch.nn.LSTM(3, 4), torch.rand(5, 3), torch.zeros(1, 4)
    flat = [getattr(lstm, name) for name in ("weight_ih_l0", "weight_hh_l0")]
    biases = [lstm.bias_ih_l0, lstm.bias_hh_l0]
    x, state = x[:, None], state[:, None]
    out, *_ = internals.rnn_functions.lstm(
        x, (state, state), [*flat, *biases], True, 1, 0.0, False, False, False
    )
    torch.testing.assert_close(out, lstm(x)[0])
    assert all(hasattr(internals.rnn_functions, name) for name in ("gru", "rnn_tanh", "rnn_relu"))


@check
def nn_functions() -> None:
    x = torch.rand(1, 1, 4, 4)
    wanted = torch.nn.functional.interpolate(x, size=(8, 8))
    assert torch.equal(internals.nn_functions.upsample_nearest2d(x, (8, 8), None), wanted)


@check
def one_kind_of_kernels() -> None:
    before = torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled
    with internals.one_kind_of_kernels():
        assert not torch._C._get_mkldnn_enabled()
        assert not torch.backends.cudnn.enabled
    assert (torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled) == before


@check
def unfused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.jit.trace(torch.nn.Sequential(torch.nn.Linear(2, 2)), (torch.ones(1, 2),))
        function = torch.jit.trace(lambda x: x + 1, (torch.ones(2),))
    for _ in range(3):
        function(torch.ones(2))
    assert function.get_debug_state().execution_plans
    for script in (module.forward, function):
        with internals.unfused(script), Seen() as seen:
            assert not torch._C._get_graph_executor_optimize()
            script(torch.ones(1, 2))
        assert {aten.linear.default, aten.addmm.default, aten.add.Tensor} & set(seen.operators)
        assert torch._C._get_graph_executor_optimize()


@check
def real_kernels() -> None:
    def by_python() -> bool:
        key = torch._C.DispatchKey.PythonDispatcher
        return torch._C._dispatch_tls_is_dispatch_key_included(key)

    with FakeTensorMode(), internals.enable_python_dispatcher():
        assert by_python()
        with internals.real_kernels():
            assert type(torch.ones(2)) is torch.Tensor
            assert not by_python()
        assert by_python()
        assert isinstance(torch.ones(2), FakeTensor)


@check
def schema_of() -> None:
    schema = internals.schema_of(aten.add_.Tensor)
    assert schema.name == "aten::add_"
    assert [argument.name for argument in schema.arguments] == ["self", "other", "alpha"]
    assert schema.arguments[0].alias_info.is_write
    assert schema.arguments[2].kwarg_only
    assert schema.arguments[2].default_value == 1
    assert schema.is_mutable
    assert str(internals.schema_of(aten.add.Tensor).arguments[1].type) == "Tensor"
    assert internals.schema_of(aten.add.out).arguments[-1].is_out


@check
def Argument() -> None:
    argument = internals.schema_of(aten.relu.default).arguments[0]
    assert isinstance(argument, internals.Argument)
    assert not argument.has_default_value()


@check
def overload_name() -> None:
    assert internals.overload_name(aten.add.Tensor) == "Tensor"
    assert internals.overload_name(aten.relu.default) == "default"


@check
def CompositeImplicit() -> None:
    assert aten.reshape.default.has_kernel_for_dispatch_key(internals.CompositeImplicit)
    assert not aten.relu.default.has_kernel_for_dispatch_key(internals.CompositeImplicit)


@check
def decomposition_tables() -> None:
    core, every = internals.decomposition_tables()
    x = torch.rand(3)
    for table in (core, every):
        torch.testing.assert_close(table[aten.addcmul.default](x, x, x), x + x * x)
    assert len(every) > len(core)


@check
def DisabledDispatch() -> None:
    with Seen() as seen, internals.DisabledDispatch():
        torch.ones(2)
    assert not seen.operators


@check
def enable_python_dispatcher() -> None:
    with internals.enable_python_dispatcher(), Seen() as seen:
        torch.ones(2, 3).flatten()
    assert aten.ones.default in seen.operators


@check
def in_kernel_invocation_manager() -> None:
    with FakeTensorMode() as mode:
        x = torch.empty(2)
    with internals.in_kernel_invocation_manager(mode):
        assert x.device.type == "meta"
    assert x.device.type == "cpu"


@check
def unset_fake_temporarily() -> None:
    with FakeTensorMode(), internals.unset_fake_temporarily():
        assert torch.ones(3).sum().item() == 3


@check
def has_storage() -> None:
    assert internals.has_storage(torch.ones(2))
    assert not internals.has_storage(torch.ones(2).to_sparse())


@check
def storage_address() -> None:
    x = torch.ones(4)
    assert internals.storage_address(x) == internals.storage_address(x[1:])
    assert internals.storage_address(x) != internals.storage_address(x.clone())


@check
def writes_counted() -> None:
    x = torch.ones(4)
    before = internals.writes_counted(x)
    x[1:].add_(1)
    assert internals.writes_counted(x) == before + 1
    with torch.inference_mode():
        assert internals.writes_counted(torch.ones(1)) == 0


@check
def references_from_cpp() -> None:
    x = torch.ones(2)
    assert internals.references_from_cpp(x) == 1
    y = x.requires_grad_() * 2  # the graph holds x
    assert internals.references_from_cpp(x) > 1
    del y


@check
def is_functorch_wrapped() -> None:
    found = []
    torch.func.vmap(lambda x: found.append(internals.is_functorch_wrapped(x)) or x)(torch.ones(2))
    assert found == [True]
    assert not internals.is_functorch_wrapped(torch.ones(2))


@check
def is_traceable_wrapper_subclass() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    assert internals.is_traceable_wrapper_subclass(TwoTensor(torch.ones(2), torch.ones(2)))
    assert not internals.is_traceable_wrapper_subclass(torch.nn.Parameter(torch.ones(2)))


@check
def no_torch_function() -> None:
    assert torch.nn.Parameter.__torch_function__ is internals.no_torch_function


def traced(function):
    with warnings.catch_warnings():
        for category in (FutureWarning, DeprecationWarning):  # TorchScript is on its way out
            warnings.simplefilter("ignore", category)
        return torch.jit.trace(function, torch.ones(2))


@check
def ScriptFunction() -> None:
    found = traced(torch.relu)
    assert isinstance(found, internals.ScriptFunction)
    assert "relu" in str(found.inlined_graph)


@check
def ScriptMethod() -> None:
    module = traced(torch.nn.ReLU())
    assert isinstance(module.forward, internals.ScriptMethod)


@check
def TensorType() -> None:
    graph = traced(torch.relu).inlined_graph
    kind = next(iter(graph.inputs())).type()
    assert isinstance(kind, internals.TensorType)
    assert kind.scalarType() in (None, "Float")


@check
def ShapeEnv() -> None:
    env = internals.ShapeEnv()
    with FakeTensorMode(shape_env=env) as mode:
        x = mode.from_tensor(torch.ones(3, 4))
    assert x.shape == (3, 4)


@check
def SymNode() -> None:
    methods = ("add", "mul", "floordiv", "mod", "sym_max", "eq", "lt", "guard_int", "wrap_int")
    assert all(callable(getattr(internals.SymNode, name)) for name in methods)


@check
def hint_of() -> None:
    x = torch.ones(6, 4)
    found = []

    def keep(x):
        found.append(x.shape[0])
        return x * 2

    dims = ({0: torch.export.Dim("n", min=2, max=9)},)
    module = torch.nn.Module()
    module.forward = keep
    torch.export.export(module, (x,), dynamic_shapes=dims)
    assert internals.hint_of(found[0]) == 6


@check
def ValueRanges() -> None:
    found = internals.ValueRanges(2, 8)
    assert (found.lower, found.upper) == (2, 8)


@check
def sizes_of_one_are_ordinary() -> None:
    import torch.fx.experimental._config as config

    before = config.backed_size_oblivious
    with internals.sizes_of_one_are_ordinary():
        assert config.backed_size_oblivious
    assert config.backed_size_oblivious == before


@check
def pytree() -> None:
    leaves, spec = internals.pytree.tree_flatten({"a": [1, (2, 3)]})
    assert leaves == [1, 2, 3]
    assert internals.pytree.tree_unflatten(leaves, spec) == {"a": [1, (2, 3)]}


@check
def flex_attention_in_plain_operators() -> None:
    x = torch.rand(1, 1, 4, 4)
    from torch.nn.attention.flex_attention import create_block_mask

    mask = create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 4, 4, device="cpu")
    score = lambda s, b, h, q, k: s  # noqa: E731
    out, *_ = internals.flex_attention_in_plain_operators(x, x, x, score, mask.as_tuple(), 0.5, {})
    wanted = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    torch.testing.assert_close(out, wanted)


@check
def global_hooks() -> None:
    before = sum(map(len, internals.global_hooks()))
    hook = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert sum(map(len, internals.global_hooks())) > before
    finally:
        hook.remove()
    assert sum(map(len, internals.global_hooks())) == before


@pytest.mark.parametrize("name", CHECKS)
def test_what_t2t_relies_on(name: str) -> None:
    CHECKS[name]()


def test_every_name_has_its_check() -> None:
    assert {name.rstrip("_") for name in CHECKS} == set(internals.__all__)


# Operators have names of their own; a module may override _apply, as torch's own do.
PRIVATE = re.compile(r"torch(?!\.ops\b)(\.\w+)*\._(?!_|check\b|apply\b)\w+|torch\.fx\.experimental")
ATTRIBUTES = {"_schema", "_overloadname", "_version", "_cdata", "_use_count", "_decomp"}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda x: x.stem)
def test_private_names_stand_in_one_place(path: Path) -> None:
    if path.name == "torch_internals.py":
        return
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
            own = isinstance(node.value, ast.Name) and node.value.id == "self"
            if node.attr in ATTRIBUTES and not own:
                found.append(f"line {node.lineno}: {names[0]}")
        found += [f"line {node.lineno}: {name}" for name in names if PRIVATE.match(name)]
    assert not found, "put it into torch_internals.py, with a check here"


def test_a_torch_without_them_is_refused_with_what_to_do() -> None:
    code = (
        "import torch; del torch._C._DisableTorchDispatch\n"
        "try:\n    import t2t.torch_internals\n"
        "except ImportError as error:\n    print(error)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "_DisableTorchDispatch" in result.stdout
    assert "2.8 to 2.14" in result.stdout
    assert operator.contains(result.stdout, torch.__version__)
