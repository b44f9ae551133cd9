"""A next-character model; replicas are averaged after each epoch."""
import torch
import torch.distributed as dist
from torch import nn

from data import Documents
from schedule import Plateau


class CharModel(nn.Module):
    def __init__(self, vocab=20, dim=12):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, tokens):
        return self.out(self.rnn(self.embed(tokens))[0])


def train_batch(model, optimizer, tokens, lr):
    for group in optimizer.param_groups:
        group["lr"] = lr
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


@torch.no_grad()
def average(model):
    world = dist.get_world_size()
    for p in model.parameters():
        parts = [torch.empty_like(p) for _ in range(world)]
        dist.all_gather(parts, p.data)
        p.copy_(torch.stack(parts).mean(0))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = CharModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    documents = Documents(dist.get_rank())
    plateau = Plateau()
    for epoch in range(3):
        for tokens, lr in zip(documents.windows(), plateau.rounds()):
            loss = train_batch(model, optimizer, tokens, lr)
            plateau.observe(loss)
        average(model)
        if dist.get_rank() == 0:
            print(epoch, loss, lr, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
