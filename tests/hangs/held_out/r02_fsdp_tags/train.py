import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

from data import IGNORE, loader_of
from model import Tagger


def build(mesh):
    torch.manual_seed(0)
    model = Tagger()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        self.seen = 0

    def step(self, tokens, tags):
        logits = self.model(tokens)
        loss = cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=IGNORE)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.seen += int((tags != IGNORE).sum())
        return loss.item()

    def epoch(self, loader):
        losses = []
        for tokens, tags in loader:
            if (tags == IGNORE).all():
                # the mean over no tags would be nan
                continue
            losses.append(self.step(tokens, tags))
        return sum(losses) / len(losses)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    trainer = Trainer(build(mesh))
    for epoch in range(2):
        loss = trainer.epoch(loader_of(rank))
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.3f}", flush=True)
    seen = torch.tensor(trainer.seen)
    dist.all_reduce(seen)
    if rank == 0:
        print("tags seen", int(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
