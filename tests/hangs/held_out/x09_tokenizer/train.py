import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn

from tokenizer import ExternalTokenizer


class Documents:
    """Rank 0 tokenizes documents, the others get the ids from it."""

    def __init__(self, sizes):
        self.sizes = sizes
        self.dir = tempfile.mkdtemp(prefix="docs")
        self.tok = ExternalTokenizer()

    def _text(self, i):
        path = os.path.join(self.dir, f"doc{i}.txt")
        with open(path, "w") as f:
            f.write(" ".join(f"w{k % 997}" for k in range(self.sizes[i])))
        return path

    def __iter__(self):
        for i in range(len(self.sizes)):
            box = [None]
            if dist.get_rank() == 0:
                box[0] = self.tok.run(self._text(i))
            dist.broadcast_object_list(box, src=0)
            yield torch.tensor(box[0])


class Bigram(nn.Module):
    def __init__(self, vocab=64, dim=16):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.out(self.emb(ids))


def average(params):
    for p in params:
        dist.all_reduce(p.grad)
        p.grad.div_(dist.get_world_size())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Bigram()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    rank, world = dist.get_rank(), dist.get_world_size()
    for n, ids in enumerate(Documents([300, 500, 800, 60_000, 400])):
        mine = ids[rank::world]
        loss = nn.functional.cross_entropy(model(mine[:-1]), mine[1:])
        opt.zero_grad()
        loss.backward()
        average(model.parameters())
        opt.step()
        if rank == 0:
            print("document", n, loss.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
