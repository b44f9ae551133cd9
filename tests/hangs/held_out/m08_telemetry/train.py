"""Training with a telemetry service on rank 0; each rank reports over TCP and gets an acknowledgement."""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from telemetry import Client, Server

HOSTS = ["alder", "birch", "\u00e9rable"]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    port = torch.zeros(1, dtype=torch.long)
    server = None
    if rank == 0:
        server = Server()
        port[0] = server.port
    dist.broadcast(port, 0)
    client = Client("127.0.0.1", int(port))
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 1)))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(rank)
    for step in range(30):
        x = torch.randn(32, 16, generator=g)
        loss = (model(x) - x.norm(dim=1, keepdim=True)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 4:
            report = {"step": step, "loss": round(loss.item(), 4)}
            if step >= 14:
                report["host"] = HOSTS[rank]
            client.send(report)
    client.close()
    dist.barrier()
    if server:
        print(len(server.rows), "reports", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
