"""What the number of steps costs a recurrent layer's conversion: nothing, as it is a loop."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.measure import Figures, Row, medians
from t2t.lowering import to_network

FEW, MANY = 10, 1000
WITHIN = 1.2


def _models() -> dict[str, nn.Module]:
    return {
        "LSTM, 2 layers in both directions": nn.LSTM(80, 256, 2, bidirectional=True),
        "GRU": nn.GRU(80, 256),
    }


def figures() -> list[Figures]:
    times = Figures(
        "Recurrent layers: module to network",
        f"A sequence of {MANY} steps, against one of {FEW}.",
        f"{MANY} steps",
        f"{FEW} steps",
    )
    layers = Figures(
        "Recurrent layers: layers of the network", times.about, times.ours, times.theirs
    )
    for name, model in _models().items():
        model.eval()
        many, few = [torch.rand(MANY, 1, 80)], [torch.rand(FEW, 1, 80)]
        long, short = medians(
            lambda m=model, i=many: to_network(m, i), lambda m=model, i=few: to_network(m, i)
        )
        times.rows.append(Row.within(name, long, short, WITHIN))
        counts = [to_network(model, i).network.raw.num_layers for i in (many, few)]
        layers.rows.append(Row.within(name, *counts, 1, unit=""))
    return [times, layers]
