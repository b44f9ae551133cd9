from collections import deque
from concurrent.futures import ThreadPoolExecutor

import torch

from decode import decode_block, fetch


class ShardReader:
    """Decodes the shards of an epoch in threads, a few shards ahead."""

    def __init__(self, max_threads=6, ahead=2):
        self.max_threads = max_threads
        self.ahead = ahead

    def load(self, pool, name):
        blocks = [pool.submit(decode_block, block) for block in fetch(name)]
        return torch.cat([block.result() for block in blocks])

    def shards(self, names):
        if not names:
            return
        with ThreadPoolExecutor(min(self.max_threads, len(names))) as pool:
            pending = deque()
            todo = iter(names)
            for name in todo:
                pending.append(pool.submit(self.load, pool, name))
                if len(pending) < self.ahead:
                    continue
                yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
