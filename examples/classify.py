"""Classify a photograph with ResNet-18, in half precision, in batches of 1 to 8.

    python examples/classify.py

The weights are random, so the classes mean nothing; `weights=Weights.DEFAULT` downloads trained
ones. The photograph is the astronaut of scikit-image.
"""

import torch
from PIL import Image
from skimage import data
from torchvision.models import ResNet18_Weights as Weights
from torchvision.models import resnet18

import t2t

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = resnet18(weights=None).eval().to(device)
preprocess = Weights.DEFAULT.transforms()  # resize, crop and normalize: no download
labels = Weights.DEFAULT.meta["categories"]

photo = preprocess(Image.fromarray(data.astronaut()))[None].to(device)  # (1, 3, 224, 224)
model_trt = t2t.convert(model, [photo], fp16=True, max_batch_size=8)

# Compare with PyTorch before anything else; this raises where they differ.
print(t2t.verify(model, model_trt, [photo], raise_on_error=True))

batch = torch.cat([photo, photo.flip(-1), torch.rand_like(photo)])
with torch.inference_mode():
    probabilities = model_trt(batch).softmax(-1)
for name, row in zip(("the photograph", "its mirror image", "noise"), probabilities, strict=True):
    best = row.topk(3)
    found = [
        f"{labels[i]} {p:.1%}" for p, i in zip(best.values, best.indices.tolist(), strict=True)
    ]
    print(f"{name}: {', '.join(found)}")
print("ran on:", model_trt.ran_on)

model_trt.save("resnet18_trt.pth")  # t2t.load reads it, without the model and without TensorRT
