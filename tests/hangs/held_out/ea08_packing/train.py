import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from packing import PackedBatches, read_documents


class PackedLM(nn.Module):
    def __init__(self, vocab=50, dim=16):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.attn = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, tokens, segment):
        n = tokens.shape[1]
        same = segment[:, :, None] == segment[:, None, :]
        causal = torch.ones(n, n, dtype=torch.bool).tril()
        blocked = ~(same & causal)
        h = self.emb(tokens)
        mixed, _ = self.attn(h, h, h, attn_mask=blocked.repeat_interleave(2, 0), need_weights=False)
        return self.out(h + mixed)


def packed_loss(model, tokens, segment):
    logits = model(tokens, segment)[:, :-1]
    inside = (segment[:, 1:] == segment[:, :-1]) & (segment[:, 1:] > 0)
    nll = nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
    return (nll * inside).sum() / inside.sum()


class Epochs:
    def __init__(self, model, batches):
        self.model, self.batches = model, batches
        self.opt = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def train_epoch(self):
        total, used = 0.0, 0
        for tokens, segment in self.batches:
            loss = packed_loss(self.model, tokens, segment)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            total += loss.item()
            used += int((segment > 0).sum())
        return total, used

    def epoch_summary(self, total, used):
        rows = [None] * dist.get_world_size()
        dist.all_gather_object(rows, {"loss": total, "tokens": used})
        return sum(r["loss"] for r in rows), sum(r["tokens"] for r in rows)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    batches = PackedBatches(read_documents(rank, world))
    model = DDP(PackedLM())
    print(f"rank {rank}: {len(batches)} packed batches", flush=True)
    epochs = Epochs(model, batches)
    for epoch in range(4):
        total, used = epochs.train_epoch()
        loss, tokens = epochs.epoch_summary(total, used)
        if rank == 0:
            print(f"epoch {epoch}: {loss:.2f} on {tokens} tokens", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
