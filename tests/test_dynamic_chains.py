"""Chains of operators with dynamic sizes: right at every declared size, or refused."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from t2t.errors import T2TError
from t2t.lowering import to_network
from t2t.reference import capture

Step = Callable[[torch.Tensor, int, int], torch.Tensor]


def written(x: torch.Tensor, dim: int, n: int) -> torch.Tensor:
    y = x.clone()
    y.narrow(dim, 0, y.shape[dim] - y.shape[dim] // 2).add_(n)
    return y


def shifted(x: torch.Tensor, dim: int, n: int) -> torch.Tensor:
    y = x.clone()
    y.narrow(dim, 1, y.shape[dim] - 1).copy_(x.narrow(dim, 0, x.shape[dim] - 1))
    return y


def line(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(1, -1, x.shape[-1])


# Each takes a tensor, one of its dimensions, and a number of 0 to 2.
STEPS: dict[str, Step] = {
    "relu": lambda x, dim, n: x.relu(),
    "sum": lambda x, dim, n: x.sum(dim, keepdim=n > 0),
    "max": lambda x, dim, n: x.max(dim, keepdim=n > 0).values,
    "mean": lambda x, dim, n: x - x.mean(dim, keepdim=True),
    "var": lambda x, dim, n: x + x.var(dim, keepdim=True, correction=0),
    "softmax": lambda x, dim, n: x.softmax(dim),
    "logsumexp": lambda x, dim, n: x - x.logsumexp(dim, keepdim=True),
    "normalize": lambda x, dim, n: F.normalize(x, dim=dim),
    "layer-norm": lambda x, dim, n: F.layer_norm(x, x.shape[-1:]),
    "cumsum": lambda x, dim, n: x.cumsum(dim),
    "sort": lambda x, dim, n: x.sort(dim).values,
    "argmax": lambda x, dim, n: x + x.argmax(dim, keepdim=True),
    "flip": lambda x, dim, n: x.flip(dim),
    "roll": lambda x, dim, n: x.roll(n + 1, dim),
    "transpose": lambda x, dim, n: x.transpose(dim, -1),
    "movedim": lambda x, dim, n: x.movedim(0, dim),
    "flatten": lambda x, dim, n: x.flatten(dim),
    "reshape": lambda x, dim, n: x.reshape(x.shape[0], -1),
    "unsqueeze": lambda x, dim, n: x.unsqueeze(dim),
    "unflatten": lambda x, dim, n: F.pad(x, (0, -x.shape[-1] % 2)).unflatten(-1, (-1, 2)),
    "most": lambda x, dim, n: x.narrow(dim, 0, x.shape[dim] - x.shape[dim] // 3),
    "every-second": lambda x, dim, n: x[..., n % 2 :: 2],
    "but-one": lambda x, dim, n: x[1:] if n else x[:-1],
    "last": lambda x, dim, n: x[..., -n - 1 :],
    "first-for-all": lambda x, dim, n: x[:1].expand(x.shape) * 1,
    "select": lambda x, dim, n: x.select(dim, -1) if x.ndim > 1 else x,
    "pad": lambda x, dim, n: F.pad(x, (n, 1)),
    "crop": lambda x, dim, n: F.pad(x, (-1, n)),
    "cat": lambda x, dim, n: torch.cat([x, x * 2], dim),
    "stack": lambda x, dim, n: torch.stack([x, x + 1], dim),
    "repeat": lambda x, dim, n: x.repeat(*[n + 1 if d == dim else 1 for d in range(x.ndim)]),
    "interleave": lambda x, dim, n: x.repeat_interleave(2, dim),
    "chunk": lambda x, dim, n: x.chunk(2, dim)[-1],
    "tril": lambda x, dim, n: x.tril(n - 1) if x.ndim > 1 else x,
    "diagonal": lambda x, dim, n: x.diagonal(n - 1, -2, -1) if x.ndim > 1 else x,
    "diff": lambda x, dim, n: x.diff(dim=dim),
    "gather": lambda x, dim, n: x.gather(dim, x.argmin(dim, keepdim=True)),
    "arange": lambda x, dim, n: x + torch.arange(x.shape[-1]),
    "linspace": lambda x, dim, n: x * torch.linspace(n, 5, x.shape[-1]),
    "size": lambda x, dim, n: x * x.shape[dim] / (x.numel() + 1),
    "root-of-size": lambda x, dim, n: x * (x.shape[-1] + 1) ** -0.5,
    "gram": lambda x, dim, n: x @ x.transpose(-1, -2) if x.ndim > 1 else x,
    "outer": lambda x, dim, n: x.unsqueeze(-1) * x.unsqueeze(-2),
    "einsum": lambda x, dim, n: torch.einsum("...i,...i->...", x, x).unsqueeze(-1) + x,
    "average": lambda x, dim, n: F.avg_pool1d(line(x), 2, ceil_mode=n > 0),
    "maximum": lambda x, dim, n: F.max_pool1d(line(x), 3, 2, 1, ceil_mode=n > 0),
    "adaptive": lambda x, dim, n: F.adaptive_avg_pool1d(line(x), n + 1),
    "nearest": lambda x, dim, n: F.interpolate(line(x), scale_factor=(2, 0.5, 1.5)[n]),
    "linear": lambda x, dim, n: F.interpolate(
        line(x), scale_factor=(2, 0.5, 1.5)[n], mode="linear"
    ),
    "windows": lambda x, dim, n: x.unfold(-1, 2, 1 + n % 2),
    "convolution": lambda x, dim, n: F.conv1d(
        x.reshape(1, 1, -1), torch.ones(1, 1, 3), stride=1 + n % 2, padding=1
    ),
    "transposed": lambda x, dim, n: F.conv_transpose1d(
        x.reshape(1, 1, -1), torch.ones(1, 1, 3), stride=2, padding=1, output_padding=n % 2
    ),
    "written": written,
    "shifted": shifted,
    "decision": lambda x, dim, n: x * 2 if x.shape[0] > n else x * 3,
    "squeeze": lambda x, dim, n: x.squeeze(dim),
}

RANKS = 5
"""Beyond it, chains only repeat themselves."""


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[tuple[str, int, int]], list[int], dict[int, int]]:
    """Draw steps, the example's shape, and for each dynamic dimension its smallest size."""
    step = st.tuples(st.sampled_from(list(STEPS)), st.integers(0, 4), st.integers(0, 2))
    steps = draw(st.lists(step, min_size=1, max_size=4))
    shape = draw(st.lists(st.integers(2, 6), min_size=1, max_size=3))
    places = st.integers(0, len(shape) - 1)
    dims = draw(st.dictionaries(places, st.integers(1, 2), min_size=1, max_size=3))
    return steps, shape, dims


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(chains())
def test_chains(chain: tuple[list[tuple[str, int, int]], list[int], dict[int, int]]) -> None:
    steps, shape, dims = chain

    def function(x: torch.Tensor) -> torch.Tensor:
        for name, dim, n in steps:
            if x.ndim == 0 or x.ndim > RANKS:
                break
            x = STEPS[name](x, dim % x.ndim, n)
        return x

    generator = torch.Generator().manual_seed(0)
    example = torch.randn(shape, generator=generator)
    if expected(function, example) is None:
        return
    try:
        made = to_network(
            function, [example], dynamic_shapes=[{d: (n, 9) for d, n in dims.items()}]
        )
    except T2TError:
        return
    program = capture(made.network.raw, made.network.weights)
    for number in range(4):
        sizes = [{0: n, 1: 9, 2: n + 1, 3: 7}[number] for n in dims.values()]
        now = [dict(zip(dims, sizes, strict=True)).get(d, n) for d, n in enumerate(shape)]
        x = torch.randn(now, generator=generator)
        wanted = expected(function, x)
        if wanted is None or wanted.numel() == 0:
            continue
        (result,) = program.run([x.clone()]).values()
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-4)


def expected(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> torch.Tensor | None:
    """Return PyTorch's result; None where it refuses these sizes."""
    try:
        return function(x)
    except (RuntimeError, IndexError, ValueError):
        return None
