import torch
import torch.distributed as dist


def reduce_dict(losses):
    with torch.no_grad():
        names = sorted(losses)
        values = torch.stack([losses[n] for n in names])
        dist.all_reduce(values)
        values /= dist.get_world_size()
    return dict(zip(names, values.tolist()))


class MetricLogger:
    def __init__(self):
        self.rows = {}

    def update(self, **kw):
        for k, v in kw.items():
            self.rows.setdefault(k, []).append(v)

    def synchronize_between_processes(self):
        for k in sorted(self.rows):
            t = torch.tensor([len(self.rows[k]), sum(self.rows[k])], dtype=torch.float64)
            dist.barrier()
            dist.all_reduce(t)
            self.rows[k] = [t[1].item() / t[0].item()]

    def averages(self):
        return {k: sum(v) / len(v) for k, v in self.rows.items()}


def train_one_epoch(model, criterion, loader, opt):
    for x, targets in loader:
        losses = criterion(model(x), targets)
        opt.zero_grad()
        sum(losses.values()).backward()
        opt.step()
        reduce_dict(losses)


@torch.no_grad()
def evaluate(model, criterion, loader):
    model.eval()
    logger = MetricLogger()
    for x, targets in loader:
        losses = criterion(model.module(x), targets)
        logger.update(**reduce_dict(losses))
    logger.synchronize_between_processes()
    model.train()
    return logger.averages()
