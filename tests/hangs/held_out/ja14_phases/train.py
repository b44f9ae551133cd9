import json

import torch
import torch.distributed as dist
from torch import nn

from phase import Phase


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 1))
    with open("curriculum.json") as file:
        curriculum = json.load(file)
    for entry in curriculum["phases"]:
        phase = Phase(entry["name"], entry["lr"], entry["passes"], entry["shards"])
        total = phase.run(model)
        if dist.get_rank() == 0:
            print(f"{phase.name}: {total:.3f}", flush=True)
    dist.barrier()
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
