import torch
import torch.distributed as dist
from torch import nn

from scaler import ManualScaler

VOCAB, DIM, SEQ = 32, 16, 8


class TinyLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.mix = nn.GRU(DIM, DIM, batch_first=True)
        self.out = nn.Linear(DIM, VOCAB)

    def forward(self, tokens):
        h, _ = self.mix(self.emb(tokens))
        return self.out(h)


def batches(rank, steps):
    g = torch.Generator().manual_seed(rank)
    for step in range(steps):
        tokens = torch.randint(0, VOCAB, (4, SEQ + 1), generator=g)
        weight = torch.ones(4)
        if rank == 1 and step == 6:
            weight[2] = 1e38  # an importance weight of a rare document
        yield tokens, weight


class Trainer:
    def __init__(self, rank, world):
        torch.manual_seed(1)
        self.rank, self.world = rank, world
        self.model = TinyLM()
        self.params = list(self.model.parameters())
        self.opt = torch.optim.Adam(self.params, lr=1e-3)
        self.scaler = ManualScaler()
        self.skipped = 0

    def loss(self, tokens, weight):
        logits = self.model(tokens[:, :-1])
        nll = nn.functional.cross_entropy(
            logits.transpose(1, 2), tokens[:, 1:], reduction="none").mean(1)
        return (nll * weight).mean()

    def reduce_gradients(self):
        for p in self.params:
            dist.all_reduce(p.grad)
            p.grad.div_(self.world)

    def optimize(self, loss):
        self.opt.zero_grad()
        self.scaler.scale(loss).backward()
        finite = self.scaler.unscale(self.params)
        self.scaler.update(finite)
        if not finite:
            self.skipped += 1
            return False
        self.reduce_gradients()
        nn.utils.clip_grad_norm_(self.params, 1.0)
        self.opt.step()
        return True

    def report(self, loss, done):
        mine = torch.tensor([loss.item(), float(done)])
        rows = [torch.zeros(2) for _ in range(self.world)]
        dist.all_gather(rows, mine)
        if self.rank == 0:
            print("mean loss", torch.stack(rows)[:, 0].mean().item(), flush=True)

    def run(self, steps=15):
        for tokens, weight in batches(self.rank, steps):
            loss = self.loss(tokens, weight)
            done = self.optimize(loss)
            self.report(loss.detach(), done)


def main():
    dist.init_process_group("gloo")
    trainer = Trainer(dist.get_rank(), dist.get_world_size())
    trainer.run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
