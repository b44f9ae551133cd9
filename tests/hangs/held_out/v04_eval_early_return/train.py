import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from data import DIM, Splits
from metrics import global_auc


def build_model():
    return nn.Sequential(nn.Linear(DIM, 16), nn.ReLU(), nn.Linear(16, 1))


def train_epoch(model, opt, x, y, batch=16):
    model.train()
    for i in range(0, len(x), batch):
        logits = model(x[i : i + batch]).squeeze(-1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y[i : i + batch])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


@torch.no_grad()
def evaluate(model, x, y):
    model.eval()
    scores = torch.sigmoid(model.module(x)).squeeze(-1)
    return global_auc(scores, y)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    torch.set_num_threads(1)
    rank = dist.get_rank()
    splits = Splits(rank)
    model = DDP(build_model())
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    best = 0.0
    x, y = splits.train()
    for epoch in range(4):
        loss = train_epoch(model, opt, x, y)
        score = evaluate(model, *splits.valid(epoch))
        best = max(best, score)
        if rank == 0:
            print(f"epoch {epoch} loss {loss:.4f} auc {score:.3f} best {best:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
