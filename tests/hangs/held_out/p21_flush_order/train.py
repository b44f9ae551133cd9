import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from flush import Bucket, Flusher
from mesh import Mesh

VOCAB, DIM = 60, 8


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.dense = nn.Linear(DIM, 21)
        self.out = nn.Linear(21, 2)

    def forward(self, items):
        return self.out(torch.relu(self.dense(self.embed(items).mean(1))))


def build(mesh):
    torch.manual_seed(0)
    model = Ranker()
    sparse = Bucket("sparse", mesh.same_row)
    sparse.parameters.append(model.embed.weight)
    dense = Bucket("dense", mesh.same_column)
    dense.parameters.extend([*model.dense.parameters(), *model.out.parameters()])
    return model, Flusher(sparse, dense)


def sessions(mesh, step, generator):
    """Users of both rows and columns see different parts of the catalogue."""
    size = 24
    wide = (mesh.row + mesh.column) % 2 == 0 or step < 3
    top = VOCAB if wide else 12
    items = torch.randint(0, top, (size, 6), generator=generator)
    return items, (items.sum(1) % 2)


def main():
    dist.init_process_group("gloo")
    mesh = Mesh()
    model, flush = build(mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(10):
        items, clicked = sessions(mesh, step, generator)
        loss = F.cross_entropy(model(items), clicked)
        optimizer.zero_grad()
        loss.backward()
        flush()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step}: {loss.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
