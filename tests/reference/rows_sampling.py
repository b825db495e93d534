"""Rows of resize, grid sampling, quantization and non-maximum suppression."""

import numpy as np
import torch
import torch.nn.functional as F

from t2t.backend import trt
from tests.reference.rows import Row, const, out, setting, wired


def _resize(mode, transform="ASYMMETRIC", scales=None, shape=None, by_tensor=None, **attributes):
    def build(n, x):
        layer = n.add_resize(x)
        layer.resize_mode = getattr(trt.InterpolationMode, mode)
        layer.coordinate_transformation = getattr(trt.ResizeCoordinateTransformation, transform)
        for name, value in attributes.items():
            enums = {"nearest_rounding": "ResizeRoundMode"}
            enums["selector_for_single_pixel"] = "ResizeSelector"
            taken = getattr(getattr(trt, enums[name]), value) if name in enums else value
            setting(layer, **{name: taken})
        if scales is not None:
            layer.scales = scales
        if shape is not None:
            layer.shape = shape
        return layer if by_tensor is None else wired(layer, i1=const(n, by_tensor, np.int64))

    return build


def _torch(mode, size, **options):
    return lambda x: F.interpolate(x, size=size, mode=mode, **options)


def _nearest(places):
    return lambda x: x[..., places]


X = (1, 2, 4, 6)
RESIZES = [
    Row("resize", [X], _resize("NEAREST", shape=(1, 2, 6, 9)), _torch("nearest", (6, 9))),
    Row(
        "resize exact",
        [X],
        _resize("NEAREST", "HALF_PIXEL", (1, 1, 1.5, 2), nearest_rounding="HALF_UP"),
        _torch("nearest-exact", (6, 12)),
    ),
    Row(
        "resize half down",
        [(1, 1, 1, 4)],
        _resize("NEAREST", "ASYMMETRIC", (1, 1, 1, 2), nearest_rounding="HALF_DOWN"),
        _nearest([0, 0, 1, 1, 2, 2, 3, 3]),
    ),
    Row(
        "resize ceil",
        [(1, 1, 1, 4)],
        _resize("NEAREST", "ASYMMETRIC", (1, 1, 1, 2), nearest_rounding="CEIL"),
        _nearest([0, 1, 1, 2, 2, 3, 3, 3]),
    ),
    Row(
        "resize half up",
        [(1, 1, 1, 4)],
        _resize("NEAREST", "ASYMMETRIC", (1, 1, 1, 2), nearest_rounding="HALF_UP"),
        _nearest([0, 1, 1, 2, 2, 3, 3, 3]),
    ),
    Row(
        "resize linear",
        [X],
        _resize("LINEAR", "HALF_PIXEL", shape=(1, 2, 7, 9)),
        _torch("bilinear", (7, 9), align_corners=False),
    ),
    Row(
        "resize corners",
        [X],
        _resize("LINEAR", "ALIGN_CORNERS", by_tensor=(1, 2, 3, 11)),
        _torch("bilinear", (3, 11), align_corners=True),
    ),
    Row(
        "resize volume",
        [(1, 2, 3, 4, 5)],
        _resize("LINEAR", "HALF_PIXEL", shape=(1, 2, 5, 6, 7)),
        _torch("trilinear", (5, 6, 7), align_corners=False),
    ),
    Row(
        "resize cubic",
        [X],
        _resize("CUBIC", "HALF_PIXEL", shape=(1, 2, 7, 9)),
        _torch("bicubic", (7, 9), align_corners=False),
        rtol=1e-4,
        atol=1e-5,
    ),
    Row(
        "resize cubic coefficient",
        [(1, 1, 1, 4)],
        _resize("CUBIC", "HALF_PIXEL", (1, 1, 1, 2), cubic_coeff=-0.5),
        # Keys' kernel with a = -1/2 at distances 1.25, 0.25, 0.75, 1.75 of the third element.
        lambda x: _cubic_row(x, -0.5, False),
    ),
    Row(
        "resize cubic inside",
        [(1, 1, 1, 4)],
        _resize("CUBIC", "HALF_PIXEL", (1, 1, 1, 2), exclude_outside=True),
        lambda x: _cubic_row(x, -0.75, True),
    ),
    Row(
        "resize to a pixel",
        [(1, 1, 5, 5)],
        _resize("LINEAR", "HALF_PIXEL", shape=(1, 1, 1, 1), selector_for_single_pixel="UPPER"),
        lambda x: x[:, :, :1, :1],
    ),
]


def _cubic_row(x, a, inside):
    def weight(d):
        d = abs(d)
        if d <= 1:
            return (a + 2) * d**3 - (a + 3) * d**2 + 1
        return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0

    values, length = x.double(), x.shape[-1]
    result = []
    for place in range(2 * length):
        at = (place + 0.5) / 2 - 0.5
        taps = [int(np.floor(at)) + k for k in (-1, 0, 1, 2)]
        weights = [weight(at - tap) for tap in taps]
        if inside:
            weights = [w if 0 <= t < length else 0.0 for w, t in zip(weights, taps, strict=True)]
            weights = [w / sum(weights) for w in weights]
        pairs = zip(weights, taps, strict=True)
        result.append(sum(w * values[..., min(max(t, 0), length - 1)] for w, t in pairs))
    return torch.stack(result, -1).float()


def _grid(mode, sample, corners):
    def build(n, x, grid):
        layer = n.add_grid_sample(x, grid)
        return setting(
            layer,
            interpolation_mode=getattr(trt.InterpolationMode, mode),
            sample_mode=getattr(trt.SampleMode, sample),
            align_corners=corners,
        )

    return build


SAMPLES = [
    Row(
        f"grid sample {mode} {sample} {corners}",
        [(2, 3, 5, 6), (2, 4, 4, 2)],
        _grid(mode, sample, corners),
        lambda x, g, m=torch_mode, p=padding, c=corners: F.grid_sample(x, g, m, p, c),
        rtol=1e-4,
        atol=1e-5,
    )
    for mode, torch_mode, sample, padding, corners in [
        ("LINEAR", "bilinear", "FILL", "zeros", False),
        ("LINEAR", "bilinear", "FILL", "zeros", True),
        ("NEAREST", "nearest", "CLAMP", "border", False),
        ("CUBIC", "bicubic", "REFLECT", "reflection", True),
    ]
] + [
    Row(
        "grid sample 3d",
        [(1, 2, 3, 4, 5), (1, 2, 3, 2, 3)],
        _grid("LINEAR", "FILL", False),
        lambda x, g: F.grid_sample(x, g, align_corners=False),
    ),
]


def _quantize(scale, axis=None, to="INT8"):
    def build(n, x):
        data_type = getattr(trt.DataType, to)
        layer = n.add_quantize(x, const(n, np.float32(scale)), data_type)
        if axis is not None:
            layer.axis = axis
        back = n.add_dequantize(out(layer), const(n, np.float32(scale)), trt.DataType.FLOAT)
        if axis is not None:
            back.axis = axis
        return [layer, back] if to == "INT8" else back

    return build


def _steps(x, scale):
    whole = torch.from_numpy(np.clip(np.rint(x.numpy() / scale), -128, 127))
    return whole.to(torch.int8), (whole * torch.as_tensor(scale)).float()


S3 = np.array([0.01, 0.02, 0.03], np.float32)
HALVES = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, 300.0, -300.0]])
INT4S = torch.randint(-8, 8, (4, 6), generator=torch.Generator().manual_seed(1))
BLOCKS = np.array([[0.5, 1.0, 2.0], [0.25, 4.0, 3.0]], np.float32)


def _int4(n):
    flat = INT4S.reshape(-1).numpy() & 15
    packed = (flat[0::2] | flat[1::2] << 4).astype(np.uint8)
    weights = trt.Weights(trt.DataType.INT4, packed.ctypes.data, INT4S.numel())
    PACKED.append(packed)
    values = out(n.add_constant((4, 6), weights))
    return n.add_dequantize(values, const(n, np.repeat(BLOCKS, 2, 1)), trt.DataType.FLOAT)


PACKED: list[np.ndarray] = []
"""Memory given by its address must outlive the network."""


def _dynamic(axis):
    def build(n, x):
        outer = const(n, np.float32(0.5))
        layer = n.add_dynamic_quantize(x, axis, 16, trt.DataType.FP4, trt.DataType.FP8)
        layer.set_input(1, outer)
        scale = n.add_dequantize(layer.get_output(1), outer, trt.DataType.FLOAT)
        return n.add_dequantize(layer.get_output(0), out(scale), trt.DataType.FLOAT)

    return build


def _dynamic_v2(n, x):
    outer = const(n, np.float32(0.5))
    layer = n.add_dynamic_quantize_v2(x, (1, 16), trt.DataType.FP4, trt.DataType.FP8)
    layer.set_input(1, outer)
    scale = n.add_dequantize(layer.get_output(1), outer, trt.DataType.FLOAT)
    return n.add_dequantize(layer.get_output(0), out(scale), trt.DataType.FLOAT)


def _dynamic_fp8(n, x):
    layer = n.add_dynamic_quantize(x, 1, 32, trt.DataType.FP8, trt.DataType.E8M0)
    return n.add_dequantize(layer.get_output(0), layer.get_output(1), trt.DataType.FLOAT)


def _dynamic_fp8_truth(x):
    scale = torch.exp2(torch.ceil(torch.log2(x.abs().amax(1, keepdim=True) / 448)))
    return (x / scale).to(torch.float8_e4m3fn).float() * scale


def _dynamic_truth(x):
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    parts = x.contiguous().reshape(2, 2, 16)
    scale = (parts.abs().amax(2, keepdim=True) / 6 / 0.5).to(torch.float8_e4m3fn).float() * 0.5
    steps = (parts / scale).clamp(-6, 6)
    nearest = (steps.abs().unsqueeze(-1) - grid).abs().argmin(-1)
    return (grid[nearest] * steps.sign() * scale).reshape(2, 32)


QUANTIZATIONS = [
    Row("quantize", [HALVES], _quantize(1.0), lambda x: _steps(x, np.float32(1.0))),
    Row(
        "quantize channels",
        [(2, 3, 4)],
        _quantize(S3, 1),
        lambda x: _steps(x, S3.reshape(1, 3, 1)),
    ),
    Row(
        "quantize fp8",
        [torch.cat([HALVES * 2, torch.randn(1, 7, generator=torch.Generator().manual_seed(4))])],
        _quantize(0.5, None, "FP8"),
        lambda x: (x / 0.5).clamp(-448, 448).to(torch.float8_e4m3fn).float() * 0.5,
    ),
    Row(
        "dequantize int4 blocks",
        [],
        _int4,
        lambda: (
            INT4S.float() * torch.from_numpy(BLOCKS).repeat_interleave(2, 0).repeat_interleave(2, 1)
        ),
    ),
    Row("dynamic quantize", [(2, 32)], _dynamic(1), _dynamic_truth),
    Row("dynamic quantize by shape", [(2, 32)], _dynamic_v2, _dynamic_truth),
    Row("dynamic quantize rows", [(32, 2)], _dynamic(0), lambda x: _dynamic_truth(x.T).T),
    Row("dynamic quantize fp8", [(3, 32)], _dynamic_fp8, _dynamic_fp8_truth),
]

SAMPLING_ROWS = [*RESIZES, *SAMPLES, *QUANTIZATIONS]
