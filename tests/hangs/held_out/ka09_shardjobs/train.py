import logging
import sys
import time

import torch
import torch.distributed as dist

from board import Board
from features import Extractor, list_files

log = logging.getLogger("extract")
STAGES = ["train", "valid", "test"]


def global_scale(extractor, files):
    moments = torch.zeros(3)
    for name in files[:3]:
        rows = extractor.read(name)
        moments += torch.stack([rows.sum(), (rows * rows).sum(), torch.tensor(float(rows.numel()))])
    dist.all_reduce(moments)
    mean = moments[0] / moments[2]
    return mean.item(), (moments[1] / moments[2] - mean * mean).sqrt().item()


def process(extractor, board, stage, files):
    mine = files[dist.get_rank()::dist.get_world_size()]
    if not mine:
        log.info("rank %d: no files of stage %s, nothing left to do", dist.get_rank(), stage)
        sys.exit(0)
    rows = 0
    for name in mine:
        rows += extractor.write(name)
    board.post(stage, rows)
    return board.collect(stage)


def main():
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dist.init_process_group("gloo")
    board = Board("extract")
    extractor = Extractor()
    scale = global_scale(extractor, list_files("train"))
    extractor.set_scale(*scale)
    for stage in STAGES:
        began = time.monotonic()
        counts = process(extractor, board, stage, list_files(stage))
        if dist.get_rank() == 0:
            log.info("%s: %d rows in %.2f s", stage, sum(counts), time.monotonic() - began)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
