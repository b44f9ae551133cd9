import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from stream import VOCAB, Documents, aligned, with_progress

EPOCHS = 3
TOKEN_BUDGET = 900


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 12)
        self.rnn = nn.GRU(12, 12, batch_first=True)
        self.out = nn.Linear(12, VOCAB)

    def forward(self, tokens):
        hidden, _ = self.rnn(self.emb(tokens))
        return self.out(hidden)


def train_epoch(model, opt, docs, rank):
    seen, steps, loss_sum = 0, 0, 0.0
    for tokens, count in with_progress(aligned(docs, limit=40), 10, rank):
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, VOCAB), tokens[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        seen += count
        steps += 1
        loss_sum += loss.item()
        if seen >= TOKEN_BUDGET:
            break
    return seen, steps, loss_sum / steps


def average_weights(model, world):
    """Local SGD: the replicas meet at the end of an epoch."""
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    parts = [torch.empty_like(flat) for _ in range(world)]
    dist.all_gather(parts, flat)
    nn.utils.vector_to_parameters(torch.stack(parts).mean(0), model.parameters())


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = LanguageModel()
    opt = torch.optim.SGD(model.parameters(), lr=0.2)
    docs = Documents(rank)
    for epoch in range(EPOCHS):
        seen, steps, loss = train_epoch(model, opt, docs, rank)
        average_weights(model, world)
        if rank == 0:
            print(f"epoch {epoch} steps {steps} tokens {seen} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
