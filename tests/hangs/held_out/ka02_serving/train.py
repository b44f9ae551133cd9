import queue
import threading
import time

import torch
import torch.distributed as dist

from cache import PrefixCache
from tp import ShardedDecoder

PREFIXES = {
    "support": "You are a support agent. Be kind",
    "legal": "You review contracts for a bank. ",
    "code": "You write Python without comment",
    "travel": "You plan journeys by train only.",
}
TRAFFIC = [
    ["support", "legal"],
    ["support", "code"],
    ["legal", "code"],
    ["support", "travel"],
    ["travel", "support"],
    ["code", "legal"],
    ["support", "travel"],
]


def clients(inbox):
    for number, batch in enumerate(TRAFFIC):
        inbox.put([(name, f"question {number}") for name in batch])
        time.sleep(0.1)
    inbox.put(None)


class Engine:
    def __init__(self, model, cache, max_new=4):
        self.model = model
        self.cache = cache
        self.max_new = max_new

    def state_of(self, name):
        state = self.cache.get(name)
        if state is None:
            tokens = torch.tensor([ord(c) for c in PREFIXES[name][:32]])
            state = self.model.prefill(tokens)
            self.cache.put(name, state)
        return state

    @torch.no_grad()
    def generate(self, name, question):
        state = self.state_of(name)
        token = torch.tensor([ord(question[-1])])
        reply = []
        for _ in range(self.max_new):
            token = self.model.next_token(state, token)
            reply.append(int(token))
        return reply


def next_batch(inbox):
    message = [inbox.get() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(message, src=0)
    return message[0]


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    engine = Engine(ShardedDecoder(), PrefixCache(budget=40 * 1024))
    inbox = queue.Queue()
    if dist.get_rank() == 0:
        threading.Thread(target=clients, args=(inbox,), daemon=True).start()
    served = 0
    while (batch := next_batch(inbox)) is not None:
        for name, question in batch:
            reply = engine.generate(name, question)
            served += 1
            if dist.get_rank() == 0:
                print(f"{name}: {reply}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
