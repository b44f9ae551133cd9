import torch
import torch.distributed as dist

from samplesort import sample_sort

READINGS = 3000


class Sensors:
    """Flux readings of a night. The detector saturates at its full well."""

    def __init__(self, rank, full_well=65535.0):
        self.rng = torch.Generator().manual_seed(100 + rank)
        self.full_well = full_well

    def night(self, exposure):
        flux = torch.rand(READINGS, generator=self.rng) * 60000.0 * exposure
        return flux.clamp(max=self.full_well)


def quantiles(ordered):
    ends = torch.tensor([float(ordered.numel())])
    dist.all_reduce(ends)
    edge = torch.stack([ordered[0], ordered[-1]]) if ordered.numel() else torch.zeros(2)
    rows = [torch.empty_like(edge) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, edge)
    return int(ends), rows


def main():
    dist.init_process_group("gloo")
    sensors = Sensors(dist.get_rank())
    for night, exposure in enumerate([0.6, 0.9, 1.0, 1.05, 3.5, 0.8]):
        ordered = sample_sort(sensors.night(exposure))
        total, edges = quantiles(ordered)
        if dist.get_rank() == 0:
            cuts = ", ".join(f"{float(row[0]):.0f}-{float(row[1]):.0f}" for row in edges)
            print(f"night {night}: {total} readings, {cuts}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
