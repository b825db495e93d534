"""Small networks for tests of pictures: nested modules, dynamic sizes, a detector's outputs."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import t2t
from t2t.reference import Program, capture

__all__ = ["Attention", "Blocks", "Detector", "program_of"]


def program_of(module: Callable[..., Any], inputs: list[torch.Tensor], **options: Any) -> Program:
    """Capture the network that a module becomes, without building it."""
    if isinstance(module, nn.Module):
        module.eval()
    conversion = t2t.to_network(module, inputs, **options)
    network = conversion.network
    program = capture(network.raw, network.weights, network.sizes())
    # The weights are the module's own memory, which may end before the program.
    state = program.to_state()
    return Program.from_state(
        {name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in state.items()}
    )


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x)) + x


class Blocks(nn.Module):
    """Four blocks in two stages."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.stages = nn.Sequential(*(nn.Sequential(Block(), Block()) for _ in range(2)))
        self.fc = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.stages(self.stem(x)).mean((2, 3)))


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (2, 4)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class Attention(nn.Module):
    """A small transformer with positions and a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.position = nn.Embedding(11, 8), nn.Embedding(16, 8)
        self.blocks = nn.Sequential(SelfAttention(), SelfAttention())

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.blocks(self.embed(ids) + self.position(torch.arange(ids.shape[1])))


class Detector(nn.Module):
    """Heads that are called for each of two levels, and an output of each call."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.levels = nn.ModuleList([nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 2, 1)])
        self.heads = nn.ModuleDict(
            {
                name: nn.Sequential(nn.Conv2d(4, 4, 3, 1, 1), nn.ReLU(), nn.Conv2d(4, count, 1))
                for name, count in (("score", 3), ("box", 4))
            }
        )

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        found = {}
        for at, level in enumerate(self.levels):
            x = torch.relu(level(x))
            found.update({f"{name}_{at}": head(x) for name, head in self.heads.items()})
        return found
