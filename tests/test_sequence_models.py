"""Models of sequences that users convert: decoders with a cache, speech, text in pictures, tags.

All have random weights, large enough that their answers differ; tokens and numbers are compared
with PyTorch's over whole runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import t2t

pytestmark = pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")

Dim = torch.export.Dim


def random_weights(model: nn.Module, std: float = 0.4) -> Any:
    """Return a model in eval mode; with a library's small weights all tokens would be the same."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, std, generator=generator)
    return model.eval()


def check(module: nn.Module, model: nn.Module, *calls: tuple[Tensor, ...]) -> None:
    with torch.no_grad():
        for inputs in calls:
            wanted = model(*inputs)
            torch.testing.assert_close(module(*inputs), wanted, rtol=1e-4, atol=1e-5)


# -- decoders with a static cache ----------------------------------------------------------------


def generated(
    step: Callable[[Tensor, Tensor], Tensor], prompt: list[int], count: int
) -> tuple[list[int], Tensor]:
    """Return the tokens of a greedy search, and the logits of all steps."""
    tokens, logits = list(prompt), []
    with torch.no_grad():
        for position in range(len(prompt) + count - 1):
            logits.append(step(torch.tensor([[tokens[position]]]), torch.tensor([position])))
            if position + 1 >= len(prompt):
                tokens.append(int(logits[-1][0, -1].argmax()))
    return tokens, torch.cat(logits)


def same_tokens(a: Any, b: Any, distinct: int = 3) -> None:
    (tokens, logits), (others, other_logits) = a, b
    assert tokens == others
    assert len(set(tokens)) >= distinct
    torch.testing.assert_close(logits, other_logits, rtol=1e-3, atol=1e-3)


@pytest.fixture(scope="module")
def llama() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return random_weights(transformers.LlamaForCausalLM(config))


def static_cache(config: Any, heads: int, size: int, length: int = 16) -> Any:
    cache = pytest.importorskip("transformers").StaticCache(config=config, max_cache_len=length)
    if not hasattr(cache, "early_initialization"):
        pytest.skip("this transformers has another cache")
    cache.early_initialization(1, heads, size, torch.float32, "cpu")
    return cache


class CacheInAttribute(nn.Module):
    """The cache is a plain object, and counts its own positions."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.cache = static_cache(model.config, 2, 8)

    def forward(self, ids: Tensor, position: Tensor) -> Tensor:
        del position
        return self.model(ids, cache=self.cache, use_cache=True).logits


class CacheInBuffers(CacheInAttribute):
    """The cache's tensors are buffers, too; the caller says which position it is."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        for index, layer in enumerate(self.cache.layers):
            for name in ("keys", "values", "cumulative_length"):
                self.register_buffer(f"{name}_{index}", getattr(layer, name), persistent=False)

    def forward(self, ids: Tensor, position: Tensor) -> Tensor:
        for layer in self.cache.layers:
            layer.cumulative_length.copy_(position[0])
        return super().forward(ids, position)


@pytest.mark.parametrize("kind", [CacheInAttribute, CacheInBuffers])
def test_llama_keeps_its_static_cache(llama: Any, kind: Any) -> None:
    model = kind(llama)
    module = t2t.convert(kind(llama), [torch.tensor([[3]]), torch.tensor([0])])
    assert len(module.state) == 6
    first = generated(module, [3, 5, 7], 8)
    same_tokens(first, generated(model, [3, 5, 7], 8))
    module.reset_state()
    same_tokens(generated(module, [9, 2], 6), generated(kind(llama), [9, 2], 6))


class CachesAsInputs(nn.Module):
    """Keys and values come in and go out: the caller keeps them."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, position: Tensor, *kept: Tensor) -> list[Tensor]:
        cache = static_cache(self.model.config, 2, 8)
        for index, layer in enumerate(cache.layers):
            layer.keys, layer.values = kept[2 * index : 2 * index + 2]
            layer.cumulative_length = position
        logits = self.model(ids, cache=cache, use_cache=True).logits
        return [logits, *(x for layer in cache.layers for x in (layer.keys, layer.values))]


def test_llama_takes_and_returns_its_cache(llama: Any) -> None:
    model, empty = CachesAsInputs(llama).eval(), [torch.zeros(1, 2, 16, 8) for _ in range(4)]
    module = t2t.convert(model, [torch.tensor([[3]]), torch.tensor([0]), *empty])

    def stepping(step: Any) -> Callable[[Tensor, Tensor], Tensor]:
        kept = [x.clone() for x in empty]

        def run(ids: Tensor, position: Tensor) -> Tensor:
            logits, *kept[:] = step(ids, position.clone(), *(x.clone() for x in kept))
            return logits

        return run

    runs = [generated(stepping(step), [3, 5, 7], 8) for step in (module, model)]
    same_tokens(*runs)


def test_llama_reads_a_prompt_of_any_length(llama: Any) -> None:
    class Prompt(CacheInAttribute):
        def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
            for layer in self.cache.layers:
                layer.cumulative_length.zero_()
            return self.model(ids, cache=self.cache, use_cache=True).logits

    model = Prompt(llama)
    length = Dim("length", min=2, max=16)
    module = t2t.convert(Prompt(llama), [torch.tensor([[3, 4, 5]])], dynamic_shapes=[{1: length}])
    check(module, model, *((torch.arange(n)[None] * 5 % 64,) for n in (2, 7, 16, 4)))
    for path, kept in module.state.items():
        wanted = model.cache.layers[int("[1]" in path)]
        torch.testing.assert_close(kept, getattr(wanted, path.rpartition(".")[2]))


def test_llamas_cache_grows_where_its_length_is_dynamic(llama: Any) -> None:
    executorch = pytest.importorskip("transformers.integrations.executorch")
    executorch.register_dynamic_cache_export_support()

    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = llama

        def forward(self, ids: Tensor, cache: Any) -> Any:
            outputs = self.model(ids, cache=cache, use_cache=True)
            return outputs.logits, outputs.cache

    def cached() -> Any:
        with torch.no_grad():
            return llama(torch.tensor([[3, 4]]), use_cache=True).cache

    model = Growing().eval()
    sizes = [{2: Dim("past", min=1, max=20)}] * 2
    module = t2t.convert(
        model, [torch.tensor([[5]]), cached()], dynamic_shapes=[None, [sizes, sizes]]
    )

    def stepping(step: Any) -> Callable[[Tensor, Tensor], Tensor]:
        kept = [cached()]

        def run(ids: Tensor, position: Tensor) -> Tensor:
            del position
            logits, kept[0] = step(ids, kept[0])
            return logits

        return run

    same_tokens(*(generated(stepping(step), [5, 9], 6) for step in (module, model)))


# -- speech --------------------------------------------------------------------------------------


def test_whisper_hears_the_same(tmp_path: Any) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.WhisperConfig(
        vocab_size=48,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        num_mel_bins=8,
        max_source_positions=20,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    whisper = random_weights(transformers.WhisperForConditionalGeneration(config), 0.25)

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = whisper.get_encoder()

        def forward(self, features: Tensor) -> Tensor:
            return self.encoder(features).last_hidden_state

    class Decoder(nn.Module):
        """One token; the keys of the text are kept, those of the sound computed anew."""

        def __init__(self) -> None:
            super().__init__()
            self.decoder, self.head = whisper.get_decoder(), whisper.proj_out
            self.cache = static_cache(config, 2, 16)

        def forward(self, ids: Tensor, position: Tensor, sound: Tensor) -> Tensor:
            for layer in self.cache.layers:
                layer.cumulative_length.copy_(position[0])
            both = transformers.EncoderDecoderCache(
                self.cache, transformers.DynamicCache(config=config)
            )
            outputs = self.decoder(
                input_ids=ids, encoder_hidden_states=sound, cache=both, use_cache=True
            )
            return self.head(outputs[0])

    sounds = [torch.randn(1, 8, 40, generator=torch.Generator().manual_seed(n)) for n in (0, 1)]
    encoder = t2t.convert(Encoder().eval(), [sounds[0]])
    decoder = t2t.convert(
        Decoder().eval(), [torch.tensor([[1]]), torch.tensor([0]), encoder(sounds[0])]
    )
    decoder.save(tmp_path / "decoder.pth")
    decoder = t2t.load(tmp_path / "decoder.pth")
    answers = []
    for sound in sounds:
        heard, known = encoder(sound), Encoder()(sound).detach()
        torch.testing.assert_close(heard, known, rtol=1e-4, atol=1e-4)
        model = Decoder().eval()
        found = generated(lambda ids, at, x=heard: decoder(ids, at, x), [1, 7], 8)
        same_tokens(found, generated(lambda ids, at, x=known, m=model: m(ids, at, x), [1, 7], 8))
        answers.append(found[0])
    assert answers[0] != answers[1]


class SpeechEncoder(nn.Module):
    """Two convolutions over the frames, then an LSTM in both directions, and one mean per voice."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(8, 12, 3, 2, 1), nn.ReLU(), nn.Conv1d(12, 12, 3, 1, 1))
        self.lstm = nn.LSTM(12, 10, num_layers=2, batch_first=True, bidirectional=True)
        self.project = nn.Linear(20, 6)

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        y, (h, _) = self.lstm(self.front(frames).transpose(1, 2))
        voice = nn.functional.normalize(self.project(y.mean(1)), dim=-1)
        return voice, h[-2:].transpose(0, 1).flatten(1)


class Crnn(nn.Module):
    """Reads a line of text: convolutions, columns as a sequence, two LSTMs, classes by column."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2, 2),
            nn.Conv2d(8, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(True),
            nn.MaxPool2d((2, 2), (2, 1), (0, 1)), nn.Conv2d(12, 12, (4, 2)), nn.ReLU(True),
        )  # fmt: skip
        self.rnn = nn.ModuleList([nn.LSTM(12, 8, bidirectional=True) for _ in range(2)])
        self.between, self.classes = nn.Linear(16, 12), nn.Linear(16, 11)

    def forward(self, picture: Tensor) -> Tensor:
        y = self.features(picture)
        assert y.shape[2] == 1
        y, _ = self.rnn[0](y.squeeze(2).permute(2, 0, 1))
        y, _ = self.rnn[1](self.between(y))
        return self.classes(y).log_softmax(2)


class Tagger(nn.Module):
    """A class for each word: embeddings, a GRU in both directions, padded words masked."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 12, padding_idx=0)
        self.gru = nn.GRU(12, 9, bidirectional=True, batch_first=True)
        self.classes = nn.Linear(18, 5)

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        y, _ = self.gru(self.embedding(words))
        scores = self.classes(y).masked_fill((words == 0)[..., None], float("-inf"))
        return scores, scores.nan_to_num(neginf=0.0).argmax(-1)


BATCH, LENGTH = Dim("batch", min=1, max=5), Dim("length", min=1, max=12)


def words(batch: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(batch * 31 + length)
    return torch.randint(0, 30, (batch, length), generator=generator)


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize(
    ("model", "inputs", "shapes"),
    [
        (
            SpeechEncoder,
            [noise(2, 8, 16), noise(1, 8, 2), noise(5, 8, 24), noise(3, 8, 10)],
            {0: BATCH, 2: 2 * LENGTH},
        ),
        (
            Crnn,
            [noise(2, 1, 16, 20), noise(1, 1, 16, 48), noise(5, 1, 16, 4), noise(2, 1, 16, 32)],
            {0: BATCH, 3: 4 * LENGTH},
        ),
        (
            Tagger,
            [words(2, 7), words(1, 1), words(5, 12), words(3, 2)],
            {0: BATCH, 1: LENGTH},
        ),
    ],
)
def test_recurrent_models_of_any_length(model: Any, inputs: list[Tensor], shapes: Any) -> None:
    torch.manual_seed(0)
    made = random_weights(model())
    module = t2t.convert(made, [inputs[0]], dynamic_shapes=[shapes])
    check(module, made, *((x,) for x in inputs))
