"""A tiny language model with tensor parallel layers by hand."""
import torch
import torch.distributed as dist
from torch import nn

from layers import ParallelMLP, VocabParallelEmbedding

VOCAB, DIM, STEPS = 48, 12, 12


class TinyLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = VocabParallelEmbedding(VOCAB, DIM)
        self.mlp = ParallelMLP(DIM, 36)
        self.out = nn.Linear(DIM, VOCAB)

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x + self.mlp(x)
        return self.out(x)


def corpus():
    """Same batches on all ranks, as tensor parallelism requires."""
    gen = torch.Generator().manual_seed(21)
    for step in range(STEPS):
        high = 30 if step == 5 else VOCAB
        yield torch.randint(0, high, (4, 17), generator=gen)


def sync_replicated(model):
    for p in model.out.parameters():
        dist.all_gather([torch.empty_like(p.grad) for _ in range(dist.get_world_size())], p.grad)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(100 + dist.get_rank())
    model = TinyLM()
    for p in model.out.parameters():
        dist.broadcast(p.data, 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step, tokens in enumerate(corpus()):
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        sync_replicated(model)
        optimizer.step()
        if dist.get_rank() == 0:
            print(step, round(loss.item(), 4), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
