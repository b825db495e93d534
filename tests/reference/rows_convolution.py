"""Rows of convolution, deconvolution, pooling, scale, LRN, normalization."""

import numpy as np
import torch
import torch.nn.functional as F

from t2t.backend import trt
from tests.reference.rows import Row, setting, wired

RNG = np.random.default_rng(7)


def _w(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


K2, K2G, K3, B4 = _w(4, 3, 3, 3), _w(6, 2, 3, 2), _w(4, 3, 2, 3, 2), _w(4)
D2, D2G = _w(3, 4, 3, 2), _w(4, 3, 3, 3)
T = torch.from_numpy


def _conv(kernel, bias=None, groups=1, dtype=np.float32, **attributes):
    def build(n, x):
        size = kernel.shape[2:]
        bias_weights = trt.Weights(bias.astype(dtype)) if bias is not None else None
        args = (x, kernel.shape[0], size, trt.Weights(kernel.astype(dtype)))
        layer = n.add_convolution_nd(*args, *([bias_weights] if bias is not None else []))
        return setting(layer, num_groups=groups, **attributes)

    return build


def _deconv(kernel, bias=None, groups=1, **attributes):
    def build(n, x):
        maps = kernel.shape[1] * groups
        args = (x, maps, kernel.shape[2:], kernel, *([bias] if bias is not None else []))
        return setting(n.add_deconvolution_nd(*args), num_groups=groups, **attributes)

    return build


def _same_pads(size, extent, stride, upper):
    total = max((size - 1) // stride * stride + extent - size, 0)
    small = total // 2
    return (small, total - small) if upper else (total - small, small)


def _conv_same(upper):
    def truth(x):
        pads = [p for d in (3, 2) for p in _same_pads(x.shape[d], 3, 2, upper)]
        return F.conv2d(F.pad(x, pads), T(K2), stride=2)

    return truth


def _conv_up(x):
    # (8 + 1 + 0 - 3) / 4 rounds up to 2: one more window, which reads zeros past the end.
    return F.conv2d(F.pad(x, (0, 3, 1, 2)), T(K2), stride=(4, 4))[:, :, :3, :3]


def _conv_inputs(n, x, kernel, bias):
    layer = n.add_convolution_nd(x, 4, (3, 3), trt.Weights(x.dtype))
    return wired(layer, i1=kernel, i2=bias)


MODE = {
    name: (lambda name=name: getattr(trt.PaddingMode, name))
    for name in ("EXPLICIT_ROUND_UP", "SAME_UPPER", "SAME_LOWER")
}


def _moded(build, mode):
    return lambda n, x: setting(build(n, x), padding_mode=MODE[mode]())


CONVOLUTIONS = [
    Row("conv", [(2, 3, 8, 7)], _conv(K2, B4), lambda x: F.conv2d(x, T(K2), T(B4))),
    Row(
        "conv stride, pad, dilation",
        [(1, 3, 9, 9)],
        _conv(K2, stride_nd=(2, 1), padding_nd=(1, 2), dilation_nd=(1, 2)),
        lambda x: F.conv2d(x, T(K2), None, (2, 1), (1, 2), (1, 2)),
    ),
    Row(
        "conv asymmetric",
        [(1, 3, 9, 9)],
        _conv(K2, pre_padding=(0, 2), post_padding=(1, 0)),
        lambda x: F.conv2d(F.pad(x, (2, 0, 0, 1)), T(K2)),
    ),
    Row(
        "conv groups",
        [(1, 4, 6, 6)],
        _conv(K2G, groups=2),
        lambda x: F.conv2d(x, T(K2G), groups=2),
    ),
    Row(
        "conv 3d",
        [(1, 3, 4, 5, 6)],
        _conv(K3, B4, stride_nd=(1, 2, 2)),
        lambda x: F.conv3d(x, T(K3), T(B4), (1, 2, 2)),
    ),
    Row(
        "conv same upper",
        [(1, 3, 8, 7)],
        _moded(_conv(K2, stride_nd=(2, 2)), "SAME_UPPER"),
        _conv_same(True),
    ),
    Row(
        "conv same lower",
        [(1, 3, 8, 7)],
        _moded(_conv(K2, stride_nd=(2, 2)), "SAME_LOWER"),
        _conv_same(False),
    ),
    Row(
        "conv round up",
        [(1, 3, 8, 8)],
        _moded(_conv(K2, stride_nd=(4, 4), pre_padding=(1, 0)), "EXPLICIT_ROUND_UP"),
        _conv_up,
    ),
    Row(
        "conv half",
        [torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(3)).half()],
        _conv(K2, B4, dtype=np.float16),
        lambda x: F.conv2d(x.float(), T(K2).half().float(), T(B4).half().float()).half(),
        rtol=0.0,
        atol=0.0,
    ),
    Row(
        "conv weights as inputs",
        [(1, 3, 8, 8), (4, 3, 3, 3), (4,)],
        _conv_inputs,
        lambda x, kernel, bias: F.conv2d(x, kernel, bias),
    ),
    Row(
        "deconv",
        [(2, 3, 5, 4)],
        _deconv(D2, B4, stride_nd=(2, 3), padding_nd=(1, 1)),
        lambda x: F.conv_transpose2d(x, T(D2), T(B4), (2, 3), 1),
    ),
    Row(
        "deconv output padding",
        [(1, 3, 5, 4)],
        _deconv(D2, B4, stride_nd=(2, 2), pre_padding=(1, 1), post_padding=(0, 1)),
        lambda x: F.conv_transpose2d(x, T(D2), T(B4), 2, 1, (1, 0)),
    ),
    Row(
        "deconv groups, dilation",
        [(1, 4, 4, 4)],
        _deconv(D2G, groups=2, dilation_nd=(2, 1)),
        lambda x: F.conv_transpose2d(x, T(D2G), None, 1, 0, 0, 2, (2, 1)),
    ),
    Row(
        "deconv same upper",
        [(1, 3, 5, 4)],
        _moded(_deconv(D2, stride_nd=(2, 1)), "SAME_UPPER"),
        lambda x: F.conv_transpose2d(x, T(D2), None, (2, 1))[:, :, 0:10, 0:4],
    ),
    Row(
        "deconv same lower",
        [(1, 3, 5, 4)],
        _moded(_deconv(D2, stride_nd=(2, 1)), "SAME_LOWER"),
        lambda x: F.conv_transpose2d(x, T(D2), None, (2, 1))[:, :, 1:11, 1:5],
    ),
]


def _pool(kind, window, **attributes):
    def build(n, x):
        layer = n.add_pooling_nd(x, getattr(trt.PoolingType, kind), window)
        return setting(layer, **attributes)

    return build


def _blend(x):
    return 0.75 * F.max_pool2d(x, 2, 1) + 0.25 * F.avg_pool2d(x, 2, 1)


def _avg_overlap(x):
    # ceil_mode of torch counts the padding but not what the last window reads past it.
    return F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=True)


POOLS = [
    Row("max pool", [(1, 2, 7, 8)], _pool("MAX", (3, 2)), lambda x: F.max_pool2d(x, (3, 2), 1)),
    Row(
        "max pool stride",
        [(1, 2, 7, 8)],
        _pool("MAX", (3, 2), stride_nd=(2, 1), padding_nd=(1, 0)),
        lambda x: F.max_pool2d(x, (3, 2), (2, 1), (1, 0)),
    ),
    Row(
        "max pool asymmetric",
        [(1, 2, 6, 6)],
        _pool("MAX", (3, 3), pre_padding=(2, 0), post_padding=(0, 1)),
        lambda x: F.max_pool2d(F.pad(x, (0, 1, 2, 0), value=-torch.inf), 3, 1),
    ),
    Row(
        "max pool up",
        [(1, 2, 8, 8)],
        _moded(_pool("MAX", (3, 3), stride_nd=(2, 2)), "EXPLICIT_ROUND_UP"),
        lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
    ),
    Row(
        "max pool 3d",
        [(1, 2, 5, 6, 7)],
        _pool("MAX", (2, 2, 3), stride_nd=(1, 2, 2)),
        lambda x: F.max_pool3d(x, (2, 2, 3), (1, 2, 2)),
    ),
    Row(
        "average, padding not counted",
        [(1, 2, 7, 7)],
        _pool("AVERAGE", (3, 3), stride_nd=(2, 2), padding_nd=(1, 1)),
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    ),
    Row(
        "average, padding counted",
        [(1, 2, 7, 7)],
        _pool("AVERAGE", (3, 3), padding_nd=(1, 1), average_count_excludes_padding=False),
        lambda x: F.avg_pool2d(x, 3, 1, 1),
    ),
    Row(
        "average up, padding counted",
        [(1, 2, 8, 8)],
        _moded(
            _pool(
                "AVERAGE",
                (3, 3),
                stride_nd=(2, 2),
                padding_nd=(1, 1),
                average_count_excludes_padding=False,
            ),
            "EXPLICIT_ROUND_UP",
        ),
        _avg_overlap,
    ),
    Row(
        "average same upper",
        [(1, 2, 8, 7)],
        _moded(_pool("AVERAGE", (3, 3), stride_nd=(2, 2)), "SAME_UPPER"),
        lambda x: (
            F.avg_pool2d(F.pad(x, (1, 1, 0, 1)), 3, 2)
            / F.avg_pool2d(F.pad(torch.ones_like(x), (1, 1, 0, 1)), 3, 2)
        ),
    ),
    Row("blend", [(1, 2, 6, 6)], _pool("MAX_AVERAGE_BLEND", (2, 2), blend_factor=0.25), _blend),
]

CONVOLUTION_ROWS = [*CONVOLUTIONS, *POOLS]
