"""Trains a small model, and continues from its last step after it had to move to another cluster.

    train.py CHECKPOINT [--steps N] [--save-every N] [--step-seconds S]

CHECKPOINT is s3://BUCKET/KEY or the path of a file. The program saves every N steps, when its lease is being reclaimed,
and at SIGTERM; then it ends with exit code 75, which the Job ignores (podFailurePolicy), so that the Job creates the
next pod. With PyTorch it trains a torch.nn.Linear; without, the same in plain Python.
"""

import argparse
import io
import pickle
import random
import signal
import sys
import time

from store import open_store

try:
    import torch
except ImportError:
    torch = None

# Comity's notice: empty until the lease is being reclaimed, then the time at which it ends.
NOTICE = "/run/comity/reclaim-at"
MOVED = 75
RATE = 0.05


class TorchTraining:
    """Model and optimizer as PyTorch has them."""

    def __init__(self):
        torch.manual_seed(1)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = torch.nn.Linear(1, 1).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=0.5)

    def step(self):
        x = torch.rand(64, 1).to(self.device)
        loss = torch.nn.functional.mse_loss(self.model(x), 3 * x + 1)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def state_dict(self):
        random_state = torch.get_rng_state()
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "random": random_state}

    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])


class PlainTraining:
    """The same in plain Python, for images without PyTorch."""

    def __init__(self):
        self.random = random.Random(1)
        self.model = {"weight": 0.0, "bias": 0.0}

    def step(self):
        xs = [self.random.random() for _ in range(64)]
        errors = [self.model["weight"] * x + self.model["bias"] - (3 * x + 1) for x in xs]
        self.model["weight"] -= RATE * 2 * sum(error * x for error, x in zip(errors, xs)) / len(xs)
        self.model["bias"] -= RATE * 2 * sum(errors) / len(xs)
        return sum(error * error for error in errors) / len(xs)

    def state_dict(self):
        return {"model": self.model, "random": self.random.getstate()}

    def load_state_dict(self, state):
        self.model = state["model"]
        self.random.setstate(state["random"])


def serialized(state):
    if torch is None:
        return pickle.dumps(state)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def deserialized(content):
    # Unpickling runs code, so read only checkpoints that nobody else can write. torch.load refuses code.
    if torch is None:
        return pickle.loads(content)
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def is_reclaimed(notice):
    """Whether Comity announced the end of the lease."""
    try:
        with open(notice, encoding="utf-8") as file:
            return bool(file.read().strip())
    except OSError:
        return False


def say(text):
    print(f"{int(time.time() * 1000)} {text}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--step-seconds", type=float, default=0.1, help="at least this long takes a step")
    parser.add_argument("--notice", default=NOTICE)
    options = parser.parse_args()

    told_to_stop = []
    signal.signal(signal.SIGTERM, lambda *_: told_to_stop.append(True))

    store, training, step = open_store(options.checkpoint), (PlainTraining if torch is None else TorchTraining)(), 0

    def save():
        store.write(serialized({"step": step, "training": training.state_dict()}))
        say(f"saved step {step}")

    content = store.read()
    if content is None:
        say("starts at step 0")
    else:
        state = deserialized(content)
        training.load_state_dict(state["training"])
        step = state["step"]
        say(f"continues after step {step}")

    while step < options.steps:
        loss = training.step()
        step += 1
        say(f"step {step} loss {loss:.6f}")
        reclaimed = is_reclaimed(options.notice)
        if told_to_stop or reclaimed:
            say("the lease is being reclaimed" if reclaimed else "SIGTERM")
            save()
            sys.exit(MOVED)
        if step % options.save_every == 0:
            save()
        time.sleep(options.step_seconds)
    save()
    say("done")


if __name__ == "__main__":
    main()
