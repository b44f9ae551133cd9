import torch
import torch.distributed as dist


class TokenExchange:
    """Sends tokens to the ranks of their experts, point to point, within a budget per step."""

    def __init__(self, width, budget):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.width = width
        self.budget = budget
        self.dropped = 0

    def plan(self, owners):
        counts = torch.bincount(owners, minlength=self.world)
        table = [torch.empty_like(counts) for _ in range(self.world)]
        dist.all_gather(table, counts)
        return torch.stack(table)

    def receive(self, table):
        pending = []
        for source in range(self.world):
            count = int(table[source, self.rank])
            if source == self.rank or count == 0:
                continue
            buffer = torch.empty(count, self.width)
            pending.append((dist.irecv(buffer, src=source), buffer))
        return pending

    def send(self, tokens, owners):
        requests = []
        spent = 0
        for target in range(self.world):
            if target == self.rank:
                continue
            chunk = tokens[owners == target]
            if len(chunk) == 0:
                continue
            if spent + len(chunk) > self.budget:
                self.dropped += len(chunk)
                continue
            spent += len(chunk)
            requests.append(dist.isend(chunk, dst=target))
        return requests

    def dispatch(self, tokens, owners):
        table = self.plan(owners)
        pending = self.receive(table)
        requests = self.send(tokens, owners)
        arrived = [tokens[owners == self.rank]]
        for request, buffer in pending:
            request.wait()
            arrived.append(buffer)
        for request in requests:
            request.wait()
        return torch.cat(arrived)
