import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from checkpoint import Checkpointer


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.rnn = nn.GRU(16, 24, batch_first=True)
        self.head = nn.Linear(24, 50)

    def forward(self, tokens):
        h, _ = self.rnn(self.embed(tokens))
        return self.head(h)


def batches(rank, steps, batch=4, length=10):
    gen = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        start = torch.randint(0, 50, (batch, 1), generator=gen)
        yield (start + torch.arange(length + 1)) % 50


def train_step(model, opt, seq):
    logits = model(seq[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), seq[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    return loss.detach()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rank = dist.get_rank()
    model = DDP(Net())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ckpt = Checkpointer(model, opt)
    for step, seq in enumerate(batches(rank, 20)):
        loss = train_step(model, opt, seq)
        ckpt.maybe_save(step)
        if rank == 0:
            print(f"step {step} loss {loss:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
