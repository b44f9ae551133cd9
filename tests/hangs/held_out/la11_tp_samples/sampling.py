import random

import torch

from model import CONTEXT, EOS, VOCAB

LETTERS = ".abcdefghijklm"


@torch.no_grad()
def complete(model, prompt, limit, temperature=1.0):
    ids = list(prompt)
    for _ in range(limit):
        window = [EOS] * (CONTEXT - len(ids)) + ids[-CONTEXT:]
        logits = model(torch.tensor([window]))[0, -1]
        weights = (logits / temperature).softmax(0).tolist()
        token = random.choices(range(VOCAB), weights)[0]
        ids.append(token)
        if token == EOS:
            break
    return ids


def text(ids):
    return "".join(LETTERS[i] for i in ids)


def show(step, completions, count=2):
    for ids in random.sample(completions, count):
        print(f"step {step}: {text(ids)}", flush=True)
