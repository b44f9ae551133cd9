import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from groups import Roles

ROUNDS, STEPS = 5, 4


def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))


def publish(net):
    """The weights of rank 0 go to everyone."""
    for p in net.parameters():
        dist.broadcast(p.data, src=0)


def report(roles, error):
    """The error that the evaluator found goes to everyone."""
    dist.broadcast(error, src=roles.evaluators[0], group=roles.groups.get("reports"))
    return error.item()


def trainer(roles):
    net = make()
    ddp = DDP(net, process_group=roles.groups["trainers"])
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(ROUNDS):
        for _ in range(STEPS):
            x = torch.randn(16, 6, generator=g)
            loss = (ddp(x) - x.sum(1, keepdim=True)).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        publish(net)
        report(roles, torch.zeros(1))


def evaluator(roles):
    net = make()
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(99))
    for round_ in range(ROUNDS):
        publish(net)
        with torch.no_grad():
            error = (net(x) - x.sum(1, keepdim=True)).square().mean()
        print("round", round_, "error", report(roles, error.reshape(1)), flush=True)


ROLES = {"trainers": trainer, "evaluators": evaluator}


def main():
    dist.init_process_group("gloo")
    roles = Roles.split(dist.get_world_size(), n_evaluators=1).setup()
    ROLES[roles.mine()](roles)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
