import torch
import torch.distributed as dist


class Engine:
    """The part of the server which runs on every rank."""

    def __init__(self, model, rank):
        self.model = model
        self.rank = rank
        self.served = 0

    def publish(self, request=None):
        box = [request]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def generate(self, prompt, n_new):
        tokens = list(prompt)
        for _ in range(n_new):
            tokens.append(self.model.next_token(torch.tensor(tokens)))
        self.served += 1
        return tokens[len(prompt):]

    def follow(self):
        while True:
            request = self.publish()
            match request:
                case {"op": "generate", "prompt": prompt, "n": n}:
                    self.generate(prompt, n)
                case {"op": "ping"}:
                    pass
                case {"op": "stop"}:
                    return
