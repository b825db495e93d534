"""Classify video with a converter and an operator of one's own.

    python examples/video.py

The network is small and has random weights. `max_pool3d` gets a converter (t2t has one, which ours
replaces), and `video::motion`, an operator with a kernel of ours, a formula.
"""

import torch
from torch import Tensor, nn

import t2t

# An operator with a kernel. PyTorch runs it; neither PyTorch nor t2t knows what it computes.


@torch.library.custom_op("video::motion", mutates_args=())
def motion(clip: Tensor) -> Tensor:
    """Return by how much each frame differs from the one before; (N, C, T, H, W)."""
    result = torch.zeros_like(clip)
    result[:, :, 1:] = (clip[:, :, 1:] - clip[:, :, :-1]).abs()  # in truth, a kernel in C++
    return result


@motion.register_fake
def _(clip: Tensor) -> Tensor:
    return torch.empty_like(clip)


@t2t.formula("video::motion")
def motion_formula(clip: Tensor) -> Tensor:
    """Say what the kernel computes, so that it becomes layers of the network."""
    before = torch.cat([clip[:, :, :1], clip[:, :, :-1]], 2)
    return (clip - before).abs()


# A converter has the parameters of torch's function, and uses or refuses each of them.


@t2t.converter("torch.nn.functional.max_pool3d")
def max_pool3d(
    net,
    input,
    kernel_size,
    stride=None,
    padding=0,
    dilation=1,
    ceil_mode=False,
    return_indices=False,
):
    t2t.errors.require("dilation", dilation, 1, "IPoolingLayer has no dilation")
    t2t.errors.require("ceil_mode", ceil_mode, False, "this converter does not round up")
    t2t.errors.require("return_indices", return_indices, False, "IPoolingLayer gives no indices")
    sizes = (kernel_size, stride or kernel_size, padding)
    window, step, pad = ((n, n, n) if isinstance(n, int) else n for n in sizes)
    return net.add_pooling_nd(input, "MAX", window, stride=step, pre_padding=pad, post_padding=pad)


class Video(nn.Module):
    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.first = nn.Conv3d(6, 16, 3, padding=1)
        self.second = nn.Conv3d(16, 32, 3, padding=1)
        self.pools = nn.ModuleList([nn.MaxPool3d((1, 2, 2)), nn.MaxPool3d(2)])
        self.head = nn.Linear(32, classes)

    def forward(self, clip: Tensor) -> Tensor:
        x = torch.cat([clip, torch.ops.video.motion(clip)], 1)
        x = self.pools[0](self.first(x).relu())
        x = self.pools[1](self.second(x).relu())
        return self.head(x.mean((2, 3, 4)))


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = Video().eval().to(device)
clip = torch.rand(1, 3, 16, 64, 64, device=device)  # batch, channels, frames, height, width

frames = torch.export.Dim("frames", min=2, max=16)
video_trt = t2t.convert(model, [clip], dynamic_shapes=[{2: 2 * frames}], max_batch_size=4)
print(t2t.verify(model, video_trt, [clip], raise_on_error=True))  # against the kernel itself

shorter = torch.rand(2, 3, 8, 64, 64, device=device)
print("classes of two shorter clips:", video_trt(shorter).argmax(-1).tolist())
print("layers by module:", video_trt.program.summary(depth=1), sep="\n")

t2t.unregister("torch.nn.functional.max_pool3d")
t2t.unregister("video::motion")
