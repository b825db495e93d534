"""Serve a converted module over HTTP: one module, a thread for each request.

    python examples/serve.py             # answers a few requests of its own, and ends
    PORT=8000 python examples/serve.py   # goes on until Ctrl-C

A request is the raw bytes of a float32 picture (3 x 64 x 64); the answer is JSON. The same module
is exported as a folder for programs in C++.
"""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import torch
import torchvision

import t2t

SHAPE = (1, 3, 64, 64)
BYTES = 4 * 3 * 64 * 64

# Once, where the model is: convert, check, write.

torch.manual_seed(0)
model = torchvision.models.squeezenet1_1(weights=None, num_classes=10).eval()
example = torch.rand(SHAPE)
converted = t2t.convert(model, [example])
t2t.verify(model, converted, [example], raise_on_error=True)
converted.save("model.pt")
if not Path("bundle").exists():
    converted.export("bundle", [example])  # engine, bindings.json, samples, run.cpp

# In the service: no model, no converters, only the file. T2T_REQUIRE_ENGINE=1 makes an error of a
# GPU that cannot run the engine.

module = t2t.load("model.pt")
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
module(torch.zeros(SHAPE, device=device))  # loads the engine before the first request


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        if size != BYTES:
            self.send_error(400, f"{size} bytes; a picture has {BYTES}: float32, 3 x 64 x 64")
            return
        picture = np.frombuffer(self.rfile.read(size), "<f4").reshape(SHAPE)
        with torch.inference_mode():
            scores = module(torch.from_numpy(picture.copy()).to(device)).softmax(-1)[0]
        answer = {"class": int(scores.argmax()), "scores": scores.tolist()}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing of each request."""


server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "0"))), Handler)
address = f"http://127.0.0.1:{server.server_port}"
threading.Thread(target=server.serve_forever, daemon=True).start()

# Several clients at once, each with a picture of its own; each must get its own answer.

pictures = [torch.rand(SHAPE) for _ in range(8)]


def ask(picture: torch.Tensor) -> list[float]:
    with urlopen(address, data=picture.numpy().astype("<f4").tobytes()) as reply:
        return json.load(reply)["scores"]


with ThreadPoolExecutor(4) as clients:
    answers = list(clients.map(ask, pictures))
for picture, answer in zip(pictures, answers, strict=True):
    with torch.no_grad():
        own = module(picture.to(device)).softmax(-1)[0].cpu()
        torch.testing.assert_close(torch.tensor(answer), own, rtol=1e-4, atol=1e-5)
print(f"{len(answers)} requests to {address}, all right; ran on: {module.ran_on}")

if "PORT" in os.environ:
    print("Ctrl-C ends it")
    threading.Event().wait()
server.shutdown()
