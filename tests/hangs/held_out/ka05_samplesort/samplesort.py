import torch
import torch.distributed as dist

from exchange import exchange_counts, exchange_keys, gather_samples


def partition(keys, splitters):
    world = dist.get_world_size()
    bucket = torch.bucketize(keys, splitters, right=True)
    order = bucket.argsort(stable=True)
    return keys[order].contiguous(), torch.bincount(bucket, minlength=world)


def sample_sort(keys, oversample=8, slack=1.5, attempts=6):
    world = dist.get_world_size()
    limit = slack * keys.numel()
    for attempt in range(attempts):
        samples = gather_samples(keys, oversample * world)
        splitters = samples[oversample * world::oversample * world][:world - 1]
        grouped, outgoing = partition(keys, splitters)
        incoming = exchange_counts(outgoing)
        if int(incoming.sum()) <= limit:
            break
        oversample *= 2
    merged = exchange_keys(grouped, outgoing, incoming)
    return merged.sort().values
