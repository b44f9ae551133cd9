"""A small inference server: rank 0 has the front end, all ranks hold a part of each layer."""
import asyncio
import os

import torch
import torch.distributed as dist

from engine import Engine
from model import TinyLM

VOCAB, DIM, MAX_LEN = 50, 24, 32


class FrontEnd:
    def __init__(self, engine):
        self.engine = engine
        self.queue = asyncio.Queue()
        self.answers = {}

    async def client(self, name, lengths):
        for i, length in enumerate(lengths):
            prompt = [(i * 7 + k) % VOCAB for k in range(length)]
            await self.queue.put((f"{name}-{i}", {"op": "generate", "prompt": prompt, "n": 4}))
            await asyncio.sleep(0)

    def handle(self, request):
        self.engine.publish(request)
        prompt, n = request["prompt"], request["n"]
        if len(prompt) + n > MAX_LEN:
            return {"error": f"prompt of {len(prompt)} tokens is too long"}
        return {"tokens": self.engine.generate(prompt, n)}

    async def serve(self):
        clients = [asyncio.create_task(self.client("a", [5, 9, 12])),
                   asyncio.create_task(self.client("b", [8, 30, 6]))]
        await asyncio.gather(*clients)
        self.engine.publish({"op": "ping"})
        while not self.queue.empty():
            key, request = await self.queue.get()
            self.answers[key] = self.handle(request)
            await asyncio.sleep(0)
        self.engine.publish({"op": "stop"})


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = TinyLM(VOCAB, DIM, rank, world, MAX_LEN)
    engine = Engine(model, rank)
    if rank == 0:
        front = FrontEnd(engine)
        asyncio.run(front.serve())
        for key, answer in front.answers.items():
            print(key, answer)
    else:
        engine.follow()
    served = torch.tensor([engine.served])
    dist.all_reduce(served)
    if rank == 0:
        print("served", int(served) // world)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
