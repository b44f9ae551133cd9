"""Exchange of buckets between all ranks."""
import torch
import torch.distributed as dist


def split(values, splitters):
    """Buckets of a sorted tensor, one for each rank."""
    edges = torch.searchsorted(values, splitters).tolist()
    return [values[a:b] for a, b in zip([0] + edges, edges + [len(values)])]


def send_bucket(bucket, peer):
    dist.send(torch.tensor([len(bucket)]), peer)
    dist.send(bucket.contiguous(), peer)


def recv_bucket(peer):
    length = torch.zeros(1, dtype=torch.long)
    dist.recv(length, peer)
    bucket = torch.empty(int(length))
    dist.recv(bucket, peer)
    return bucket


def exchange(buckets):
    """Each sender has its turn; the others receive from it."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = [buckets[rank]]
    for sender in range(world):
        if sender != rank:
            mine.append(recv_bucket(sender))
            continue
        for peer, bucket in enumerate(buckets):
            if peer == rank or not len(bucket):
                continue
            send_bucket(bucket, peer)
    return torch.cat(mine)
