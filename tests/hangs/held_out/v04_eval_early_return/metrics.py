import torch
import torch.distributed as dist


def gather_rows(rows):
    out = [torch.zeros_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(out, rows)
    return torch.cat(out)


def auc(scores, labels):
    order = scores.argsort()
    ranks = torch.empty_like(scores)
    ranks[order] = torch.arange(1, len(scores) + 1, dtype=scores.dtype)
    pos = labels.sum()
    neg = len(labels) - pos
    return ((ranks[labels.bool()].sum() - pos * (pos + 1) / 2) / (pos * neg)).item()


def global_auc(scores, labels):
    """AUC over the predictions of all ranks."""
    if labels.sum() == 0 or labels.sum() == len(labels):
        return float("nan")
    scores = gather_rows(scores)
    labels = gather_rows(labels)
    return auc(scores, labels)
