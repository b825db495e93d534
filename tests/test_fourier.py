"""Complex numbers and Fourier transforms inside of networks, whose inputs and outputs are real."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import t2t
from t2t.errors import ConversionError, UnsupportedArgumentError, UnsupportedOperatorError
from t2t.lowering import to_network
from t2t.precision import Policy
from tests.cases import OpCase, ids, run_case, uniform

REASON = "torch adds in the order of its fast transform, and a product of matrices in another"
EXACT: dict[str, Any] = {"rtol": 1e-5, "atol": 2e-5, "reason": REASON}

generator = torch.Generator().manual_seed(7)
Z = torch.complex(torch.randn(4, 6, generator=generator), torch.randn(4, 6, generator=generator))
WEIGHT = torch.complex(
    torch.randn(3, 5, 4, 3, generator=generator), torch.randn(3, 5, 4, 3, generator=generator)
)


def real(z: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(z.resolve_conj())


def made(x: torch.Tensor) -> torch.Tensor:
    """Return complex numbers that depend on all elements of (..., 2 * n)."""
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))


def of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of complex numbers as one of real ones."""

    def run(*given: torch.Tensor) -> Any:
        found = function(*map(made, given))
        return real(found) if found.is_complex() else found

    return run


def transform(name: str, row: str, *shape: int, **kwargs: Any) -> OpCase:
    """Return a row of a transform; of real numbers, where it takes real ones."""
    function = getattr(torch.fft, name)
    takes_real = name.startswith(("r", "ih"))

    def run(x: torch.Tensor) -> Any:
        found = function(x if takes_real else made(x), **kwargs)
        return real(found) if found.is_complex() else found

    return OpCase(f"{name}-{row}", run, [shape], **EXACT)


NAMES = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")

TRANSFORMS = [
    *[transform(name, "plain", 3, 10) for name in NAMES],
    *[transform(name, "odd", 3, 14) for name in NAMES],
    *[transform(name, "padded", 3, 10, n=12) for name in NAMES],
    *[transform(name, "cut", 3, 16, n=7) for name in NAMES],
    *[transform(name, "dim", 3, 5, 8, dim=-2, norm="ortho") for name in NAMES],
    *[transform(name, "forward", 4, 6, norm="forward") for name in NAMES],
    *[
        transform(f"{name}{kind}", "plain", 2, 4, 6, 8)
        for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
        for kind in ("2", "n")
    ],
    transform("rfft2", "dims", 2, 5, 6, 4, dim=(1, 2), norm="ortho"),
    transform("irfft2", "sizes", 2, 5, 8, s=(4, 7), dim=(-1, 0), norm="forward"),
    transform("fftn", "sizes", 3, 4, 6, s=(5, 2), dim=(0, -1)),
    transform("fftn", "of-nothing", 3, 4, dim=()),
    transform("rfft", "one", 3, 1),
    transform("fft", "long", 2, 2 * 768),
    transform("ifft", "longer", 2, 2 * 2048),
    transform("rfft", "long", 2, 1536, norm="ortho"),
    transform("rfft", "long-odd", 2, 1155),
    transform("irfft", "long", 2, 2 * 601),
    transform("irfft", "long-odd", 2, 2 * 601, n=1155),
    transform("rfft", "prime", 2, 521),
    OpCase("fft-real", lambda x: torch.fft.fft(x).imag, [(3, 7)], **EXACT),
    OpCase("fft2-real", lambda x: torch.fft.fft2(x).real, [(2, 5, 6)], **EXACT),
    OpCase("fftn-abs", lambda x: torch.fft.fftn(x).abs(), [(4, 5, 6)], **EXACT),
    OpCase("ifft-real", lambda x: torch.fft.ifft(x).real, [(3, 7)], **EXACT),
    OpCase("rfft-back", lambda x: torch.fft.irfft(torch.fft.rfft(x), 7), [(3, 7)], **EXACT),
    OpCase("shift", of(lambda z: torch.fft.ifftshift(torch.fft.fftshift(z, -1)[:3])), [(4, 10)]),
    OpCase(
        "frequencies", lambda x: torch.fft.rfft(x).abs() * torch.fft.rfftfreq(8), [(3, 8)], **EXACT
    ),
    OpCase(
        "rfft-dynamic", lambda x: real(torch.fft.rfft(x)), [(3, 12)],
        dynamic=[{0: (1, 5), 1: (4, 20)}], shapes=[(2, 15)], **EXACT,
    ),
    OpCase(
        "rfft-dynamic-batch", lambda x: real(torch.fft.rfft(x, norm="ortho")), [(3, 12)],
        dynamic=[{0: (1, 5)}], shapes=[(2, 12)], **EXACT,
    ),
    OpCase(
        "fft-dynamic", lambda x: torch.fft.ifft(torch.fft.fft(x * 1j), norm="ortho").imag,
        [(3, 12)], dynamic=[{1: (4, 20)}], shapes=[(3, 17)], **EXACT,
    ),
    OpCase(
        "irfft-dynamic", lambda x: torch.fft.irfft(torch.fft.rfft(x), n=x.shape[1]), [(3, 12)],
        dynamic=[{1: (4, 20)}], shapes=[(3, 15)], **EXACT,
    ),
    OpCase("rfft-too-long", lambda x: torch.fft.rfft(x).abs(), [(1, 9973)], raises="length 9973"),
    OpCase(
        "rfft-dynamic-too-long", lambda x: torch.fft.rfft(x).abs(), [(1, 100)],
        dynamic=[{1: (1, 10000)}], raises="and not dynamic",
    ),
]  # fmt: skip

HANN = torch.hann_window(16)
FILTERS = torch.rand(6, 9, generator=torch.Generator().manual_seed(3))


def spectrum(x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    return torch.stft(x, 16, 4, window=HANN, return_complex=True, **kwargs)


def bands(x: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of a mel spectrogram, as speech models read it."""
    return torch.clamp(FILTERS @ spectrum(x).abs() ** 2, min=1e-5).log10()


SPECTROGRAMS = [
    OpCase("stft", lambda x: real(spectrum(x)), [(2, 64)], **EXACT),
    OpCase("stft-one", lambda x: spectrum(x).abs(), [(64,)], **EXACT),
    OpCase(
        "stft-no-window", lambda x: real(torch.stft(x, 8, return_complex=True)), [(2, 33)], **EXACT
    ),
    OpCase("stft-not-centred", lambda x: real(spectrum(x, center=False)), [(2, 50)], **EXACT),
    OpCase("stft-normalized", lambda x: real(spectrum(x, normalized=True)), [(2, 50)], **EXACT),
    OpCase("stft-whole", lambda x: real(spectrum(x, onesided=False)), [(2, 50)], **EXACT),
    OpCase("stft-padding", lambda x: real(spectrum(x, pad_mode="constant")), [(2, 50)], **EXACT),
    OpCase(
        "stft-short-window",
        lambda x: x.stft(16, 5, 12, torch.hamming_window(12), return_complex=True).angle().cos(),
        [(2, 50)], rtol=1e-4, atol=1e-4, reason="the direction of what is small is less exact",
    ),
    OpCase("mel", bands, [(2, 64)], rtol=1e-4, atol=1e-4, reason="logarithms of small numbers"),
    OpCase(
        "mel-dynamic", bands, [(2, 64)], dynamic=[{0: (1, 4), 1: (32, 200)}], shapes=[(3, 81)],
        rtol=1e-4, atol=1e-4, reason="logarithms of small numbers",
    ),
    OpCase("istft", lambda x: torch.istft(spectrum(x), 16, 4, window=HANN), [(2, 64)], **EXACT),
    OpCase(
        "istft-length", lambda x: torch.istft(spectrum(x) * 0.5j, 16, 4, window=HANN, length=60),
        [(2, 64)], **EXACT,
    ),
    OpCase(
        "istft-dynamic-batch", lambda x: torch.istft(spectrum(x), 16, 4, window=HANN), [(2, 64)],
        dynamic=[{0: (1, 5)}], shapes=[(3, 64)], **EXACT,
    ),
    OpCase(
        "windows", lambda x: x.contiguous().as_strided((2, 5, 4), (18, 3, 1)), [(2, 18)],
    ),
]  # fmt: skip


# -- complex numbers ---------------------------------------------------------------------------


def rotary(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Turn pairs of features (batch, length, heads, features), as Llama's first code does."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[: x.shape[1]].unsqueeze(1)).flatten(3).type_as(x)


TURNS = torch.polar(torch.ones(16, 4), torch.outer(torch.arange(16.0), torch.rand(4)))


class Spectral(nn.Module):
    """The spectral convolution of a Fourier neural operator."""

    def __init__(self) -> None:
        super().__init__()
        self.low = nn.Parameter(WEIGHT.clone())
        self.high = nn.Parameter(WEIGHT.clone().conj().resolve_conj() * 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, _, height, width = x.shape
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros(batch, 5, height, width // 2 + 1, dtype=torch.cfloat)
        out[:, :, :4, :3] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :4, :3], self.low)
        out[:, :, -4:, :3] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -4:, :3], self.high)
        return torch.fft.irfft2(out, s=(height, width))


class Mixing(nn.Module):
    """The token mixing of FNet."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dense = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real
        return self.dense(self.norm(x + mixed))


class Filter(nn.Module):
    """The global filter of GFNet, whose weights are pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4, 3, 2) * 0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = torch.fft.rfft2(x, dim=(1, 2), norm="ortho")
        z = z * torch.view_as_complex(self.weight)
        return torch.fft.irfft2(z, s=x.shape[1:3], dim=(1, 2), norm="ortho")


MODELS = [
    OpCase("rotary", lambda x: rotary(x, TURNS), [(2, 5, 3, 8)]),
    OpCase("rotary-dynamic", lambda x: rotary(x, TURNS), [(2, 5, 3, 8)],
           dynamic=[{0: (1, 4), 1: (1, 16)}], shapes=[(1, 9, 3, 8)]),
    OpCase("rotary-fp16", lambda x: rotary(x * 2, TURNS), [(2, 5, 3, 8)],
           policy=Policy(torch.float16), rtol=2e-3, atol=2e-3, reason="half precision"),
    OpCase("fno", Spectral(), [(2, 3, 10, 12)], **EXACT),
    OpCase("fno-dynamic", Spectral(), [(2, 3, 10, 12)],
           dynamic=[{0: (1, 4)}], shapes=[(3, 3, 10, 12)], **EXACT),
    OpCase("fno-resolutions", Spectral(), [(2, 3, 10, 12)],
           dynamic=[{2: (9, 20), 3: (8, 20)}], shapes=[(2, 3, 13, 9)], **EXACT),
    OpCase("fnet", Mixing(), [(2, 6, 8)], rtol=1e-4, atol=1e-4, reason=REASON),
    OpCase("fnet-fp16", Mixing(), [(2, 6, 8)], policy=Policy(torch.float16), rtol=5e-3, atol=5e-3,
           reason="half precision in the dense layer"),
    OpCase("gfnet", Filter(), [(2, 6, 6, 3)], **EXACT),
]  # fmt: skip

PAIR = (4, 12)
TWO = [PAIR, PAIR]


def in_place(x: torch.Tensor) -> Any:
    """Write into complex numbers, their views and their parts; all share memory."""
    x = x * 1
    z = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    z.mul_(1 - 2j)
    z[0] = 3
    z[:, 1:3] += z[:, :2].clone()
    z.real.add_(1)
    z.imag[2] = z.real[1]
    z.t()[0] *= 1j
    z.view(-1)[5:7] = torch.view_as_complex(x[:1, :4].reshape(2, 2)) * 2
    z.masked_fill_(z.abs() > 4, 0.5)
    z[3, 4:].zero_()
    return x, real(z)


def filled(x: torch.Tensor) -> torch.Tensor:
    """Write into complex constants that the forward pass has made."""
    out = torch.zeros(4, 7, dtype=torch.complex64)
    out[:, 1:] = made(x)
    out[1:3, ::3] = 2j
    out[torch.tensor([0, 3]), torch.tensor([2, 2])] = made(x)[:2, 0]
    out.select(0, 2).copy_(out[0])
    return real(out)


def conjugated_then_written(x: torch.Tensor) -> torch.Tensor:
    z = made(x * 1)
    turned = z.conj()
    z.mul_(2)
    return real(turned * 1)


def written_then_conjugated(x: torch.Tensor) -> torch.Tensor:
    z = made(x * 1)
    z.mul_(2)
    return real(z.conj() * z)


NUMBERS = [
    OpCase("add", of(lambda a, b: a + b), TWO),
    OpCase("add-alpha", of(lambda a, b: torch.add(a, b, alpha=3)), TWO),
    OpCase("add-real", lambda x, y: real(made(x) + y), [PAIR, (4, 6)]),
    OpCase("real-add", lambda x, y: real(y + made(x)), [PAIR, (6,)]),
    OpCase("add-number", of(lambda z: 1 + z + (2 - 1j)), [PAIR]),
    OpCase("add-constant", of(lambda z: z + Z), [PAIR]),
    OpCase("real-add-constant", lambda x: real(x + Z), [(4, 6)]),
    OpCase("sub", of(lambda a, b: a - b), TWO),
    OpCase("sub-number", of(lambda z: z - 2j), [PAIR]),
    OpCase("rsub", of(lambda z: 2 - z), [PAIR]),
    OpCase("rsub-alpha", of(lambda z: torch.rsub(z, 1j, alpha=2)), [PAIR]),
    OpCase("mul", of(lambda a, b: a * b), TWO),
    OpCase("mul-broadcast", of(lambda a, b: a.unsqueeze(1) * b), [(4, 12), (3, 12)]),
    OpCase("mul-real", lambda x, y: real(made(x) * y), [PAIR, (4, 1)]),
    OpCase("mul-number", of(lambda z: z * 2 * 1j), [PAIR]),
    OpCase("mul-constant", of(lambda z: Z * z), [PAIR]),
    OpCase("mul-conjugate", of(lambda z: z * Z.conj()), [PAIR]),
    OpCase("real-times-number", lambda x: real(x * 1j), [(3, 4)]),
    OpCase("int-times-number", lambda x: real(x.int() * 1j), [(3, 4)]),
    OpCase("div", of(lambda a, b: a / b), TWO, rtol=1e-4, atol=1e-5, reason="small divisors"),
    OpCase("div-real", lambda x, y: real(made(x) / (y.abs() + 1)), [PAIR, (4, 6)]),
    OpCase("div-number", of(lambda z: z / 2 / (1 - 1j)), [PAIR]),
    OpCase("div-large", of(lambda a: a * 1e25 / (Z * 1e25)), [PAIR]),
    OpCase("reciprocal", of(lambda z: 1 / (z + 3)), [PAIR]),
    OpCase("neg", of(lambda z: -z), [PAIR]),
    OpCase("conj", of(lambda z: z.conj()), [PAIR]),
    OpCase("conj-physical", of(lambda z: z.conj_physical()), [PAIR]),
    OpCase("conj-matmul", of(lambda a, b: a @ b.mH), [PAIR, (3, 12)]),
    OpCase("conj-imag", lambda x: made(x).conj().imag, [PAIR]),
    OpCase("abs", of(lambda z: z.abs()), [PAIR]),
    OpCase("abs-large", of(lambda z: (z * 1e30).abs()), [PAIR]),
    OpCase("angle", of(lambda z: z.angle()), [PAIR]),
    OpCase("angle-axes", lambda x: made(x.round()).angle(), [uniform(4, 12)]),
    OpCase("sgn", of(lambda z: (z * (z.abs() > 1)).sgn()), [PAIR]),
    OpCase("exp", of(lambda z: z.exp()), [PAIR]),
    OpCase("log", of(lambda z: z.log()), [PAIR], rtol=1e-4, atol=1e-5, reason="sizes near 1"),
    OpCase("square", of(lambda z: z**2), [PAIR]),
    OpCase("cube", of(lambda z: z**3), [PAIR]),
    OpCase("sum", of(lambda z: z.sum()), [PAIR]),
    OpCase("sum-dim", of(lambda z: z.sum(-1, keepdim=True)), [PAIR]),
    OpCase("mean", of(lambda z: z.mean(0)), [PAIR]),
    OpCase("mean-all", of(lambda z: z.mean()), [PAIR]),
    OpCase("cumsum", of(lambda z: z.cumsum(-1)), [PAIR]),
    OpCase("complex", lambda x, y: real(torch.complex(x, y)), [(3, 4), (4,)]),
    OpCase("polar", lambda x, y: real(torch.polar(x.abs(), y)), [(3, 4), (3, 4)]),
    OpCase("to-complex", lambda x: real(x.to(torch.complex64)), [(3, 4)]),
    OpCase("to-real", lambda x: made(x).to(torch.float32), [PAIR]),
    OpCase("matmul", of(lambda a, b: a @ b.T), [PAIR, (3, 12)]),
    OpCase("matmul-batches", of(lambda a, b: a @ b.mT), [(2, 4, 12), (2, 3, 12)]),
    OpCase("matmul-real", lambda x, y: real(made(x) @ y.to(torch.complex64)), [PAIR, (6, 3)]),
    OpCase("matmul-vector", of(lambda a, b: a @ b), [PAIR, (12,)]),
    OpCase("dot", of(lambda a, b: torch.dot(a, b)), [(12,), (12,)]),
    OpCase("linear", of(lambda z: nn.functional.linear(z, Z, Z[:, 0])), [PAIR]),
    OpCase("addmm", of(lambda z: torch.addmm(z[:, :4], z, Z.T, beta=0.5, alpha=2j)), [PAIR]),
    OpCase("addmv", of(lambda z: torch.addmv(z[:, 0], z, Z[0], alpha=2)), [PAIR]),
    OpCase("baddbmm", of(lambda z: torch.baddbmm(z[:, :, :4], z, Z.T[None], beta=0)), [(1, *PAIR)]),
    OpCase("einsum", of(lambda a, b: torch.einsum("ij,kj->ik", a, b)), TWO),
]  # fmt: skip

MOVED = [
    OpCase("view", of(lambda z: z.view(3, -1).t()), [PAIR]),
    OpCase("reshape", of(lambda z: z.t().reshape(8, 3)), [PAIR]),
    OpCase("permute", of(lambda z: z.permute(-1, 0, 1)), [(2, *PAIR)]),
    OpCase("transpose", of(lambda z: z.transpose(-1, 0)), [(2, *PAIR)]),
    OpCase("expand", of(lambda z: z[:1].expand(3, 4, -1)), [PAIR]),
    OpCase("slice", of(lambda z: z[1:, ::2][..., -2:]), [PAIR]),
    OpCase("select", of(lambda z: z[..., -1]), [PAIR]),
    OpCase("unbind", of(lambda z: z.unbind(-1)[2]), [PAIR]),
    OpCase("split", of(lambda z: z.split(4, -1)[1]), [PAIR]),
    OpCase("split-sizes", of(lambda z: z.split([1, 5], -1)[1]), [PAIR]),
    OpCase("chunk", of(lambda z: z.chunk(2, -1)[1]), [PAIR]),
    OpCase("unsqueeze", of(lambda z: z.unsqueeze(-1).squeeze(-1).unsqueeze(0).squeeze()), [PAIR]),
    OpCase("squeeze-dims", of(lambda z: z[None, :, None].squeeze((0, 2))), [PAIR]),
    OpCase("diagonal", of(lambda z: z.diagonal(1, -1, 0)), [(2, *PAIR)]),
    OpCase("unfold", of(lambda z: z.unfold(-1, 3, 2)), [PAIR]),
    OpCase("clone", of(lambda z: z.t().contiguous().clone().detach()), [PAIR]),
    OpCase("alias", of(torch.ops.aten.alias), [PAIR]),
    OpCase("cat", lambda x: real(torch.cat([made(x), x[:, :2], Z], -1)), [PAIR]),
    OpCase("stack", of(lambda a, b: torch.stack([a, b], -1)), TWO),
    OpCase("flip", of(lambda z: z.flip(-1)), [PAIR]),
    OpCase("roll", of(lambda z: z.roll(2, -1).roll(5)), [PAIR]),
    OpCase("repeat", of(lambda z: z.repeat(2, 1, 3)), [PAIR]),
    OpCase("pad", of(lambda z: nn.functional.pad(z, (1, 2, 0, 1))), [PAIR]),
    OpCase("index", of(lambda z: z[torch.tensor([2, 0]), :, None]), [PAIR]),
    OpCase("index-apart", of(lambda z: z[[0, 1], :, [2, 3]]), [(2, *PAIR)]),
    OpCase("index-select", of(lambda z: z.index_select(-1, torch.tensor([3, 1]))), [PAIR]),
    OpCase("gather", of(lambda z: z.gather(1, torch.tensor([[1, 2], [0, 5]]))), [PAIR]),
    OpCase("take", of(lambda z: z.take(torch.tensor([[1, 2], [0, 5]]))), [PAIR]),
    OpCase("slice-scatter", of(lambda z: z.slice_scatter(z[:, :2], -1, 1, 5, 2)), [PAIR]),
    OpCase("select-scatter", of(lambda z: z.select_scatter(z[:, 0], -1, 2)), [PAIR]),
    OpCase("index-put", of(lambda z: z.index_put((torch.tensor([1, 3]),), z[0])), [PAIR]),
    OpCase("scatter", of(lambda z: z.scatter(1, torch.tensor([[1], [2]]), z[2:])), [PAIR]),
    OpCase("where", lambda x: real(torch.where(x[:, :6] > 0, made(x), 1j)), [PAIR]),
    OpCase("masked-fill", lambda x: real(made(x).masked_fill(x[:, :6] > 0, 2 - 1j)), [PAIR]),
    OpCase("zeros-like", of(lambda z: torch.zeros_like(z) + z), [PAIR]),
    OpCase("new-zeros", of(lambda z: z.new_zeros(6) + z), [PAIR]),
    OpCase("zeros-dynamic",
           lambda x: real(torch.zeros(x.shape[0], 6, dtype=torch.cfloat) + made(x)), [PAIR],
           dynamic=[{0: (1, 5)}], shapes=[(2, 12)]),
    OpCase("in-place", in_place, [PAIR]),
    OpCase("filled", filled, [PAIR]),
    OpCase("filled-dynamic", lambda x: real(made(x).clone().mul_(2).select(1, 0).t_()), [PAIR],
           dynamic=[{0: (1, 5)}], shapes=[(2, 12)]),
    OpCase("turned-in-place", lambda x: (x @ torch.ones(12, 3)).transpose_(0, 1) * 2, [PAIR],
           dynamic=[{0: (1, 5)}], shapes=[(2, 12)]),
    OpCase("written-then-conjugated", written_then_conjugated, [PAIR]),
    OpCase("conjugated-then-written", conjugated_then_written, [PAIR],
           raises="shares memory|changed in place"),
]  # fmt: skip

REFUSED = [
    OpCase("output", made, [PAIR], raises="output' has complex numbers"),
    OpCase("tangent", of(torch.tan), [PAIR], raises="complex numbers"),
    OpCase("power", of(lambda z: z**0.5), [PAIR], raises="complex numbers"),
    OpCase("equal", lambda x: made(x) == Z, [PAIR], raises="complex numbers"),
    OpCase("pad-number", of(lambda z: nn.functional.pad(z, (1, 2), value=1.0)), [PAIR],
           raises="complex numbers"),
    OpCase("double", lambda x: (made(x) * Z.to(torch.complex128)).real.float(), [PAIR],
           raises="float64"),
]  # fmt: skip


@pytest.mark.parametrize("case", ids([*TRANSFORMS, *SPECTROGRAMS, *MODELS, *NUMBERS, *MOVED]))
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.filterwarnings("ignore:A window was not provided")
def test_complex_numbers(case: OpCase) -> None:
    run_case(case)


@pytest.mark.parametrize("case", ids(REFUSED))
def test_refused(case: OpCase) -> None:
    if case.name != "output":
        run_case(case)
        return
    with pytest.raises(UnsupportedArgumentError, match=case.raises):
        to_network(made, [torch.randn(PAIR)])


def test_missing_operators_are_those_without_a_formula() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.irfft(torch.fft.rfft(x).tan() * 2j)

    found = t2t.missing_operators(model, [torch.randn(3, 8)])
    assert found[0].startswith("aten::tan: complex numbers")
    assert not any("aten::_fft_r2c" in line for line in found)


class Through(nn.Module):
    """Complex numbers go through an operator that has no formula."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = torch.fft.rfft(self.first(x).tanh() * 2) * (1 - 0.5j)
        z = (z * 0.1).tan() + z.conj()
        return self.last(torch.fft.irfft(z * 2j)).relu() + 1


@pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")
@pytest.mark.parametrize("executed", [(), ("aten::_fft_r2c",), ("aten::mul",)])
def test_partial(executed: tuple[str, ...], tmp_path: Any) -> None:
    torch.manual_seed(0)
    model, x = Through().eval(), torch.randn(3, 8)
    with pytest.raises(UnsupportedOperatorError, match="tan: complex numbers"):
        t2t.convert(model, [x])
    converted = t2t.convert(model, [x], partial=True, torch_executed_ops=list(executed))
    left = [part for part in converted.parts if not part.in_engine]
    assert any(part.name == "aten::tan" for part in left)
    assert bool(executed) == any("torch_executed_ops" in part.reason for part in left)
    converted.save(tmp_path / "model.pth")
    for module in (converted, t2t.load(tmp_path / "model.pth")):
        for given in (x, torch.randn(3, 8)):
            torch.testing.assert_close(module(given), model(given), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")
def test_verification_and_layers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 12), Spectral(), nn.Linear(12, 4)).eval()
    x = torch.randn(2, 3, 10, 12)
    converted = t2t.convert(model, [x])
    assert t2t.verify(model, converted, [x]).ok
    report = t2t.compare_layers(converted, model, [x])
    assert report.ok
    assert len(report.layers) >= 2


def test_a_formula_of_ones_own() -> None:
    @t2t.formula("aten::tan", of_complex=True)
    def tan(self: torch.Tensor) -> torch.Tensor:
        turned = (self * 2j).exp()
        return (turned - 1) / (turned + 1) * -1j

    try:
        run_case(OpCase("tan", of(torch.tan), [PAIR], rtol=1e-4, atol=1e-5, reason="cancellation"))
        run_case(OpCase("real", torch.tan, [(3, 4)]))
    finally:
        t2t.unregister("aten::tan")
    with pytest.raises(ConversionError, match="complex numbers"):
        to_network(of(torch.tan), [torch.randn(PAIR)])
