import torch
import torch.distributed as dist

VOCAB = 20


class Documents:
    def __init__(self, rank):
        self.gen = torch.Generator().manual_seed(rank)
        self.rank = rank

    def batch(self, index):
        longest = 12 if self.rank != 3 else 15
        length = torch.randint(longest - 4, longest, (1,), generator=self.gen)
        return torch.randint(0, VOCAB, (4, int(length)), generator=self.gen)


def aligned(docs, limit):
    """Batches padded to the longest of all ranks, so that all ranks compute equally long."""
    for index in range(limit):
        tokens = docs.batch(index)
        longest = torch.tensor([tokens.shape[1]])
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        padded = torch.zeros(4, int(longest), dtype=torch.int64)
        padded[:, : tokens.shape[1]] = tokens
        yield padded, tokens.numel()


def with_progress(batches, every, rank):
    for n, item in enumerate(batches):
        if n % every == 0 and rank == 0:
            print(f"  batch {n}", flush=True)
        yield item
