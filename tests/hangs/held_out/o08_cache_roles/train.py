import os
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

BUILD = """
import os, random, sys, time
end = time.time() + 7
rows = set()
while time.time() < end:
    rows.add(random.random() * 1e4 // 1)
open(sys.argv[1] + '.tmp', 'w').write(str(len(rows)))
os.replace(sys.argv[1] + '.tmp', sys.argv[1])
"""


def warm_caches(marker):
    a = torch.randn(200, 200)
    while not marker.exists():
        a = torch.tanh(a @ a.T / 200)
    return a


def prepare(rank, folder):
    marker = folder / "index"
    if rank == 0:
        subprocess.run([sys.executable, "-c", BUILD, str(marker)], check=True)
    else:
        warm_caches(marker)
    return int(float(marker.read_text()))


def save_later(model, path):
    state = {k: v.clone() for k, v in model.state_dict().items()}

    def work():
        time.sleep(4)
        torch.save(state, path)

    thread = threading.Thread(target=work, name="saver")
    thread.start()
    return thread


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=2))
    rank = dist.get_rank()
    folder = Path(tempfile.gettempdir()) / f"roles_{os.environ['MASTER_PORT']}"
    folder.mkdir(exist_ok=True)
    rows = prepare(rank, folder)
    torch.manual_seed(rows % 7 * 0)
    model = DDP(nn.Linear(12, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(96, 12), torch.randint(0, 3, (96,)))
    savers = []
    for epoch in range(3):
        for x, y in DataLoader(data, batch_size=8, num_workers=1):
            end = time.perf_counter() + (0.4 if rank else 0.2)
            while time.perf_counter() < end:
                torch.linalg.qr(torch.randn(60, 60))
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            savers.append(save_later(model.module, folder / f"epoch{epoch}.pt"))
    for thread in savers:
        thread.join()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
