import torch
import torch.distributed as dist
from torch import nn

from moe import HashMoE

VOCAB = 240
DOMAINS = {"news": (0, 240), "code": (20, 240), "tables": (0, 150), "chat": (40, 230)}
SCHEDULE = ["news", "code", "news", "chat", "code", "tables", "news", "chat"]


class Model(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.moe = HashMoE(width, VOCAB)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCAB)

    def forward(self, tokens):
        return self.head(self.norm(self.moe(self.embed(tokens), tokens)))

    def shared(self):
        return [p for name, p in self.named_parameters() if ".expert." not in name]


def sample(domain, generator, rows=8, length=24):
    low, high = DOMAINS[domain]
    return torch.randint(low, high, (rows, length + 1), generator=generator)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Model()
    torch.manual_seed(1 + dist.get_rank())
    model.moe.expert.up.reset_parameters()
    model.moe.expert.down.reset_parameters()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(50 + dist.get_rank())
    for step in range(40):
        block = sample(SCHEDULE[step % len(SCHEDULE)], generator)
        logits = model(block[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), block[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.shared():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
