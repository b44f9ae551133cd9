import torch
import torch.distributed as dist


class Recall:
    """Recall over the positive examples of all ranks."""

    def __init__(self):
        self.hits = []

    def add(self, logits, labels):
        positive = labels == 1
        if positive.any():
            self.hits.append((logits[positive] > 0).float())

    def compute(self):
        if not self.hits:
            return 0.0
        local = torch.cat(self.hits)
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, (local.sum().item(), len(local)))
        found = sum(part[0] for part in parts)
        return found / sum(part[1] for part in parts)


@torch.no_grad()
def evaluate(model, batches):
    recall = Recall()
    model.eval()
    for x, y in batches:
        recall.add(model(x).squeeze(1), y)
    value = recall.compute()
    model.train()
    return value
