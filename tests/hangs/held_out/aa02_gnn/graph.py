"""A graph split by ranges of nodes; each rank owns features of its own range."""
import torch
import torch.distributed as dist

NODES_PER_RANK = 40


def build_edges(world):
    g = torch.Generator().manual_seed(3)
    n = NODES_PER_RANK * world
    edges = {i: [] for i in range(n)}
    for i in range(n):
        if 60 <= i < 68:                 # imported from another source
            continue
        for j in torch.randint(0, n, (4,), generator=g).tolist():
            edges[i].append(j)
    for i in range(60, 64):
        edges[i] = [i + 4]
    return edges


class FeatureStore:
    def __init__(self, rank, world, dim):
        self.rank, self.world, self.dim = rank, world, dim
        g = torch.Generator().manual_seed(100 + rank)
        self.local = torch.randn(NODES_PER_RANK, dim, generator=g)

    def pull(self, nodes):
        wanted = [[n for n in nodes if n // NODES_PER_RANK == r] for r in range(self.world)]
        everyone = [None] * self.world
        dist.all_gather_object(everyone, wanted)
        out = {n: self.local[n % NODES_PER_RANK] for n in wanted[self.rank]}
        answer = {n: self.local[n % NODES_PER_RANK] for w in everyone for n in w[self.rank]}
        replies = [None] * self.world
        dist.all_gather_object(replies, answer)
        for reply in replies:
            out.update((n, f) for n, f in reply.items() if n in nodes)
        return out


class NeighbourSampler:
    def __init__(self, edges, store, fanouts):
        self.edges, self.store, self.fanouts = edges, store, fanouts

    def sample(self, seeds):
        frontier, seen = set(seeds), set(seeds)
        features = self.store.pull(frontier)
        layers = []
        for fanout in self.fanouts:
            pairs = [(n, m) for n in sorted(frontier) for m in self.edges[n][:fanout]]
            frontier = {m for _, m in pairs} - seen
            if not frontier:
                break
            features.update(self.store.pull(frontier))
            seen |= frontier
            layers.append(pairs)
        return features, layers
