"""Layers whose output's size depends on data: non-zero and non-maximum suppression."""

from __future__ import annotations

import torch
from torch import Tensor

from t2t.reference.layer import Kernel, Ready, layer, wide


@layer("NON_ZERO", "indices_type")
def non_zero(ready: Ready) -> Kernel:
    """(D, C): the places of the C elements that are not zero, in row-major order."""
    dtype = ready.dtype
    return lambda x: x.nonzero().T.contiguous().to(dtype)


@layer("NMS", "bounding_box_format", "topk_box_limit", "indices_type", host=(2, 3, 4))
def nms(ready: Ready) -> Kernel:
    """Return (selected, 3) rows of batch, class and box, and how many there are.

    Boxes are (B, N, 4) or (B, N, classes, 4), scores (B, N, classes). Rows are sorted by batch
    and, within it, by falling score.
    """
    centers = ready.attributes["bounding_box_format"] == "CENTER_SIZES"
    limit, (rows_type, count_type) = ready.attributes["topk_box_limit"], ready.dtypes

    def kernel(
        boxes: Tensor,
        scores: Tensor,
        most: Tensor,
        iou_threshold: Tensor | None = None,
        score_threshold: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        overlap = 0.0 if iou_threshold is None else float(iou_threshold)
        least = 0.0 if score_threshold is None else float(score_threshold)
        rows: list[tuple[int, int, int]] = []
        for batch in range(scores.shape[0]):
            found: list[tuple[float, int, int]] = []
            for kind in range(scores.shape[2]):
                own = boxes[batch, :, kind] if boxes.dim() == 4 else boxes[batch]
                corners = _corners(wide(own), centers)
                score = wide(scores[batch, :, kind])
                chosen = _select(corners, score, int(most), overlap, least, limit)
                found += [(-float(score[box]), kind, box) for box in chosen]
            rows += [(batch, kind, box) for _, kind, box in sorted(found)]
        selected = torch.tensor(rows, dtype=rows_type, device=boxes.device).reshape(-1, 3)
        return selected, torch.tensor(len(rows), dtype=count_type)

    return kernel


def _corners(boxes: Tensor, centers: bool) -> Tensor:
    """Return boxes as (smaller corner, larger corner)."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if centers:
        return torch.cat([first - second / 2, first + second / 2], 1)
    return torch.cat([torch.minimum(first, second), torch.maximum(first, second)], 1)


def _select(
    boxes: Tensor, scores: Tensor, most: int, overlap: float, least: float, limit: int
) -> list[int]:
    order = scores.argsort(descending=True, stable=True)
    order = order[scores[order] > least]
    if limit > 0:
        order = order[:limit]
    chosen: list[int] = []
    while order.numel() and len(chosen) < most:
        best = order[0]
        chosen.append(int(best))
        order = order[1:]
        order = order[_iou(boxes[best], boxes[order]) <= overlap]
    return chosen


def _iou(box: Tensor, others: Tensor) -> Tensor:
    low = torch.maximum(box[:2], others[:, :2])
    high = torch.minimum(box[2:], others[:, 2:])
    shared = (high - low).clamp_min(0).prod(1)
    areas = (others[:, 2:] - others[:, :2]).prod(1) + (box[2:] - box[:2]).prod()
    return shared / (areas - shared).clamp_min(torch.finfo(torch.float32).tiny)
