"""Train a small network on handwritten digits, and quantize it to int8.

    python examples/quantize.py

The digits are those that come with scikit-learn: 1797 pictures of 8 x 8. Ranges of activations are
measured on training pictures; the accuracy is that of pictures that neither has seen.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import t2t

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32, device=device)[:, None] / 16
labels = torch.tensor(digits.target, device=device)
train, test = torch.arange(1347), torch.arange(1347, 1797)

model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1),
    nn.BatchNorm2d(64),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(256, 10),
).to(device)
optimizer = torch.optim.Adam(model.parameters(), 2e-3)
for _ in range(8):
    for rows in train[torch.randperm(len(train))].split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
model.eval()

calibration = [images[rows] for rows in train[:512].split(64)]
int8 = t2t.convert(model, [images[:64]], max_batch_size=512, int8=True, calibration=calibration)
print(int8.quantization)  # what computes in int8, and why the rest does not


def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return (outputs.argmax(1) == targets).float().mean().item()


# The rounded network against the same rounding in PyTorch, and both accuracies side by side.
report = t2t.verify(
    model,
    int8,
    [images[test]],
    metric=accuracy,
    data=[(images[test], labels[test])],
    metric_drop=0.02,
    raise_on_error=True,
)
print(report)
before, after = report.metric
print(f"accuracy: {before:.1%} in float32, {after:.1%} in int8, {len(test)} pictures")
