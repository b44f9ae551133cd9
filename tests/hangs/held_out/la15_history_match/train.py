import torch
import torch.distributed as dist
from torch import nn

from match import HistoryMatch
from wells import WellLog

OUTAGES = {0: [(130, 170)], 1: [(250, 330)], 2: [(20, 50)], 3: []}


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
    match = HistoryMatch(model, world)
    log = WellLog(rank, OUTAGES[rank])
    for sweep in range(3):
        for number, (time, pressure, weight) in enumerate(log.windows(64)):
            loss = match.fit_window(time, pressure, weight)
            misfit = match.misfit(loss)
            if rank == 0:
                values = ", ".join(f"{v:.4f}" for v in misfit.tolist())
                print(f"sweep {sweep} window {number}: {values}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
