"""Federated averaging; rank 0 is the server and a client as well."""
import torch
import torch.distributed as dist

from client import Client, make_net

ROUNDS = 5


class Server:
    def __init__(self):
        self.state = make_net().state_dict()

    def average(self, updates):
        total = sum(u["seen"] for u in updates)
        for key, value in self.state.items():
            if value.is_floating_point():
                value.copy_(sum(u["state"][key] * (u["seen"] / total) for u in updates))
        return total


def publish(server):
    box = [server.state if server else None]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    server = Server() if rank == 0 else None
    client = Client(rank, world)
    for number in range(ROUNDS):
        state = publish(server)
        updates = client.participate(number, state)
        if server and updates:
            total = server.average([u for u in updates if u])
            print(f"round {number}: {total} records", flush=True)
    failures = torch.tensor([client.failures])
    dist.all_reduce(failures)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
