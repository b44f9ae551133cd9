import functools

import torch
import torch.distributed as dist

REGISTRY = {}


def metric(name):
    def add(function):
        REGISTRY[name] = function
        return function

    return add


def memoize(key):
    def wrap(function):
        known = {}

        @functools.wraps(function)
        def inner(logits, labels):
            k = key(labels)
            if k in known:
                return known[k]
            known[k] = function(logits, labels)
            return known[k]

        return inner

    return wrap


@metric("accuracy")
def accuracy(logits, labels):
    hit = (logits.argmax(1) == labels).float().mean()
    dist.all_reduce(hit)
    return hit.item() / dist.get_world_size()


@metric("coverage")
@memoize(key=lambda labels: tuple(sorted(set(labels.tolist()))))
def coverage(logits, labels):
    seen = torch.bincount(labels, minlength=logits.shape[1]).clamp(max=1)
    dist.all_reduce(seen, op=dist.ReduceOp.MAX)
    return seen.sum().item()


@metric("worst")
def worst(logits, labels):
    each = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    parts = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, each.max().detach())
    return max(p.item() for p in parts)


def evaluate(logits, labels):
    return {name: function(logits, labels) for name, function in REGISTRY.items()}
