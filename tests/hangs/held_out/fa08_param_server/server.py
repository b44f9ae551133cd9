import torch

from protocol import SIZE, Kind, recv_header, recv_vector, send_vector


class Server:
    def __init__(self, workers, lr):
        torch.manual_seed(0)
        self.params = 0.1 * torch.randn(SIZE)
        self.workers = list(workers)
        self.lr = lr
        self.running = True
        self.updates = 0

    def handle(self, worker):
        kind, step = recv_header(worker)
        match kind:
            case Kind.PULL:
                send_vector(self.params, worker)
            case Kind.PUSH:
                self.params -= self.lr * recv_vector(worker)
                self.updates += 1
            case Kind.DONE:
                print(f"worker {worker} is done after step {step}", flush=True)
                self.running = False

    def serve(self):
        while self.running:
            for worker in self.workers:
                self.handle(worker)
                if not self.running:
                    break
