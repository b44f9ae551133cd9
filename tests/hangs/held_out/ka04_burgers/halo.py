import torch
import torch.distributed as dist


class Halo:
    """Exchanges one cell at each end with the neighbours of a line of ranks."""

    def __init__(self):
        self.rank = dist.get_rank()
        self.left = self.rank - 1 if self.rank > 0 else None
        self.right = self.rank + 1 if self.rank < dist.get_world_size() - 1 else None
        self.exchanges = 0

    def pad(self, u):
        padded = torch.cat([u[:1], u, u[-1:]])
        requests = []
        ghosts = {}
        for peer, edge, slot in ((self.left, u[:1], 0), (self.right, u[-1:], -1)):
            if peer is None:
                continue
            ghosts[slot] = torch.empty(1)
            requests.append(dist.irecv(ghosts[slot], src=peer))
            requests.append(dist.isend(edge.clone(), dst=peer))
        for request in requests:
            request.wait()
        for slot, value in ghosts.items():
            padded[slot] = value[0]
        self.exchanges += 1
        return padded
