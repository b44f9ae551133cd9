import torch
import torch.distributed as dist
import torch.nn as nn

from tp import ParallelMLP, VocabParallelEmbedding

VOCAB, DIM = 48, 12


class LM(nn.Module):
    def __init__(self, pretrained):
        super().__init__()
        self.emb = VocabParallelEmbedding(VOCAB, DIM, pretrained)
        self.mlp = ParallelMLP(DIM, 24)
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        return self.head(self.mlp(self.emb(ids)))


def clip(model, limit):
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    local = torch.stack([g.pow(2).sum() for g in grads]).sum().reshape(1)
    parts = [torch.empty(1) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, local)
    norm = torch.cat(parts).sum().sqrt()
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    for g in grads:
        g.mul_(scale)
    return norm


def train(model, steps):
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    g = torch.Generator().manual_seed(1)
    for step in range(steps):
        ids = torch.randint(0, VOCAB, (4, 9), generator=g)
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        norm = clip(model, 1.0)
        opt.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(step, loss.item(), norm.item(), flush=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = LM(pretrained=20)
    for p in model.head.parameters():
        dist.broadcast(p.data, src=0)
    train(model, 40)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
