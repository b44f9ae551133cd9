"""Functions with the calls of two ranks and the statement by which they parted (see its test)."""

from __future__ import annotations

Known = dict[str, object]

CASES: dict[str, tuple[str, Known]] = {
    "if": ("""
        def f(loss):
            reduce()  # s
            if loss > 10:  # d
                reduce()  # o
            reduce()  # t
    """, {}),
    "if on the others": ("""
        def f(loss):
            reduce()  # s
            if loss > 10:  # d
                reduce()  # t
            reduce()  # o
    """, {}),
    "else": ("""
        def f(loss):
            reduce()  # s
            if loss > 10:  # d
                reduce()  # o
            else:
                gather()  # t
    """, {}),
    "elif": ("""
        def f(kind):
            reduce()  # s
            if kind == 1:
                first()
            elif kind == 2:  # d
                reduce()  # o
            gather()  # t
    """, {}),
    "second elif": ("""
        def f(kind):
            reduce()  # s
            if kind == 1:
                first()
            elif kind == 2:
                second()
            elif kind == 3:  # d
                reduce()  # o
            else:
                gather()  # t
    """, {}),
    "if and elif": ("""
        def f(kind):
            reduce()  # s
            if kind == 1:  # d
                first()  # o
            elif kind == 2:
                second()  # t
    """, {}),
    "nested if": ("""
        def f(a, b):
            reduce()  # s
            if a:
                if b:  # d
                    reduce()  # o
                gather()  # t
    """, {}),
    "inner if of two": ("""
        def f(step, loss):
            reduce()  # s
            if step % 5 == 0:
                if loss > 3:  # d
                    reduce()  # o
            gather()  # t
    """, {}),
    "outer if of two": ("""
        def f(step, loss):
            reduce()  # s
            if loss > 3:  # d
                if step % 5 == 0:
                    reduce()  # o
            gather()  # t
    """, {}),
    "last call is alike in the branch": ("""
        def f(a, b):
            if a:
                reduce()  # s
                if b:  # d
                    reduce()  # o
            gather()  # t
    """, {}),
    "one line if": ("""
        def f(a):
            reduce()  # s
            if a: reduce()  # o d
            gather()  # t
    """, {}),
    "one line break": ("""
        def f(loss):
            for step in range(10):
                reduce()  # s
                if loss < 1: break  # d
                gather()  # t
            barrier()  # o
    """, {}),
    "break": ("""
        def f(loss):
            for step in range(10):
                reduce()  # s
                if loss < 1:  # d
                    print("stopped")
                    break  # j
                gather()  # t
            barrier()  # o
    """, {}),
    "break in the else": ("""
        def f(loss):
            for step in range(10):
                reduce()  # s
                if loss > 1:  # d
                    gather()  # t
                else:
                    break  # j
            barrier()  # o
    """, {}),
    "continue": ("""
        def f(loss):
            for step in range(10):
                reduce()  # s
                if loss > 3:  # d
                    continue  # j
                gather()  # t
            barrier()  # o
    """, {}),
    "continue before any call": ("""
        def f(batch, STEPS):
            for step in range(6):
                if batch is None:  # d
                    continue  # j
                reduce()  # s t
            barrier()  # o
    """, {}),
    "return": ("""
        def f(x):
            reduce()  # s1
            if x is None:  # d
                return  # j
            reduce()  # t1
        def main():
            f(3)  # s0 t0
            barrier()  # o0
    """, {}),
    "raise": ("""
        def f(x):
            reduce()  # s1
            if x is None:  # d
                raise ValueError  # j
            reduce()  # t1
        def main():
            try:
                f(3)  # s0 t0
            except ValueError:
                pass
            barrier()  # o0
    """, {}),
    "raise in another function": ("""
        def checked(batch):
            if not finite(batch):
                raise FloatingPointError
        def sweep(rates):
            for i in range(30):
                checked(rates[i])
                reduce()  # s1 t1
        def main():
            try:
                sweep(rates)  # s0 t0
            except FloatingPointError:  # d
                pass
            barrier()  # o0
    """, {"calling": (7,)}),
    "loader": ("""
        def f(loader):
            for batch in loader:  # d
                reduce()  # s t
            barrier()  # o
    """, {}),
    "loader of enumerate": ("""
        def f(loader):
            for number, batch in enumerate(loader):  # d
                reduce()  # s t
            barrier()  # o
    """, {}),
    "loop in a loop": ("""
        def f(loader):
            for epoch in range(3):
                for batch in loader:  # d
                    reduce()  # s t
                validate()  # o
    """, {}),
    "loop with an else": ("""
        def f(loader):
            for batch in loader:
                reduce()  # s
                if batch is None:  # d
                    break  # j
                gather()  # t
            else:
                all_done()
            barrier()  # o
    """, {}),
    "else of a loop": ("""
        def f(candidates):
            reduce()  # s
            for each in range(3):
                if candidates[each]:  # d
                    break  # j
            else:
                gather()  # o
            barrier()  # t
    """, {}),
    "while": ("""
        def f(loss):
            while loss > 3:  # d
                reduce()  # s t
            barrier()  # o
    """, {}),
    "endless while": ("""
        def f(queue):
            while True:
                item = queue.get()
                if item is None:  # d
                    break  # j
                reduce()  # s t
            barrier()  # o
    """, {}),
    "with": ("""
        def f(model, loss):
            with model.no_sync():
                reduce()  # s
                if loss > 3:  # d
                    reduce()  # o
            gather()  # t
    """, {}),
    "return out of with": ("""
        def f(lock, loss):
            with lock:
                reduce()  # s1
                if loss > 3:  # d
                    return  # j
                reduce()  # t1
        def main(lock):
            f(lock, 3)  # s0 t0
            barrier()  # o0
    """, {}),
    "handler": ("""
        def f(model):
            for step in range(6):
                try:
                    model()
                    reduce()  # s t
                except ValueError:  # d
                    print("skipped")
            barrier()  # o
    """, {}),
    "handler of an exception that is known": ("""
        def f(model, loader):
            for batch in loader:
                try:
                    model()
                    reduce()  # s t
                except KeyError:
                    print("key")
                except ValueError:  # d
                    print("skipped")
            barrier()  # o
    """, {"raised": (("ValueError",), ())}),
    "call in a handler": ("""
        def f(model):
            reduce()  # s
            try:
                model()
            except ValueError:  # d
                reduce()  # o
            gather()  # t
    """, {}),
    "if rather than an exception": ("""
        def f(model, loss):
            reduce()  # s
            try:
                model()
                if loss > 3:  # d
                    reduce()  # o
            except ValueError:
                pass
            gather()  # t
    """, {}),
    "else of try": ("""
        def f(model):
            reduce()  # s
            try:
                model()
            except ValueError:  # d
                pass
            else:
                reduce()  # o
            gather()  # t
    """, {}),
    "finally": ("""
        def f(model, loss):
            try:
                reduce()  # s
                if loss > 3:  # d
                    reduce()  # o
            finally:
                gather()  # t
    """, {}),
    "return through finally": ("""
        def f(model, loss):
            try:
                reduce()  # s
                if loss > 3:  # d
                    return  # j
                reduce()  # t
            finally:
                gather()  # o
    """, {}),
    "break through finally": ("""
        def f(loss):
            for step in range(6):
                try:
                    reduce()  # s
                    if loss > 3:  # d
                        break  # j
                    reduce()  # t
                finally:
                    log()
            barrier()  # o
    """, {}),
    "suppress": ("""
        def f(model):
            for step in range(6):
                with contextlib.suppress(ValueError):  # d
                    model()
                    reduce()  # s t
            barrier()  # o
    """, {}),
    "class that swallows": ("""
        class Optional:
            def __exit__(self, kind, error, trace):
                return kind is not None and issubclass(kind, OSError)

        def f(model):
            for step in range(6):
                with Optional("weights"):  # d
                    model()
                    reduce()  # s t
            barrier()  # o
    """, {}),
    "generator that swallows": ("""
        @contextlib.contextmanager
        def tolerant():
            try:
                yield
            except OSError:
                log("absent")

        def f(model):
            for step in range(6):
                with tolerant():  # d
                    model()
                    reduce()  # s t
            barrier()  # o
    """, {}),
    "either part of a condition": ("""
        def f(self, every):
            while True:
                reduce()  # s t
                if self.step % every == 0 or self.preemption.requested:  # d
                    barrier()  # o
    """, {"is_sure": False}),
    "decorator": ("""
        def f(tracker):
            for step in range(6):
                reduce()  # s0 t0
                if step % 5 == 4:
                    tracker.report()  # o0

        @accelerator.on_main_process  # d
        def report(self):
            gather()  # o1
    """, {}),
    "match": ("""
        def f(kind):
            reduce()  # s
            match kind:  # j
                case "a":  # d
                    reduce()  # o
                case _:
                    gather()  # t
    """, {}),
    "match without a case": ("""
        def f(kind):
            reduce()  # s
            match kind:  # j
                case "a":  # d
                    reduce()  # o
            gather()  # t
    """, {}),
    "conditional expression": ("""
        def f(x, sync):
            reduce()  # s
            x = reduce(x) if sync else x  # o d
            gather()  # t
    """, {}),
    "and": ("""
        def f(x, sync):
            reduce()  # s
            sync and reduce(x)  # o d
            gather()  # t
    """, {}),
    "call in a condition": ("""
        def f(x, sync):
            reduce()  # s
            if sync and agree(x):  # o d
                log()
            gather()  # t
    """, {}),
    "comprehension": ("""
        def f(xs):
            reduce()  # s
            ys = [reduce(x) for x in xs if x]  # o d
            gather()  # t
    """, {}),
    "branch after a condition that calls": ("""
        def f(x):
            if agree(x):  # s d
                reduce()  # o
            gather()  # t
    """, {}),
    "statement of several lines": ("""
        def f(x, loss):
            reduce()  # s
            if (  # d
                loss > 3
                and x
            ):
                reduce(
                    x,  # o
                )
            gather(
                x,  # t
            )
    """, {}),
    "decorated": ("""
        @wrapped(
            3
        )
        def f(x, loss):
            reduce()  # s
            if loss > 3:  # d
                reduce()  # o
            gather()  # t
    """, {}),
    "nested function before": ("""
        def f(loader, loss):
            def log(x):
                return x

            for batch in loader:
                reduce()  # s
                if loss > 3:  # d
                    break  # j
                gather()  # t
            barrier()  # o
    """, {}),
    "in a nested function": ("""
        def f(loader):
            def closure():
                reduce()  # s1
                if x > 3:  # d
                    return  # j
                gather()  # t1
            for batch in loader:
                opt(closure)  # s0 t0
                barrier()  # o0
    """, {}),
    "returned early": ("""
        def save(rank):
            if rank % 2:
                log()
            if rank != 1:  # d
                return  # j
            barrier()  # o1
        def main(rank):
            for step in range(6):
                reduce()  # s0
                if step == 3:
                    save(rank)  # o0
                gather()  # t0
    """, {}),
    "returned early in all steps": ("""
        def save(state):
            if state.is_empty():  # d
                return  # j
            barrier()  # o1
        def main(state):
            reduce()  # s0
            save(state)  # o0
            gather()  # t0
    """, {}),
    "returned early two functions down": ("""
        def write(path):
            if path.exists():  # d
                return  # j
            barrier()  # o2
        def save(state):
            log()
            write(state.path)  # o1
        def main(state):
            reduce()  # s0
            save(state)  # o0
            gather()  # t0
    """, {}),
    "others go on inside": ("""
        def train(loader):
            for batch in loader:  # d
                reduce()  # s1 t1
        def main(loader):
            train(loader)  # s0 t0
            barrier()  # o0
    """, {}),
    "loop of the caller": ("""
        def epoch(batches):
            for batch in batches:
                reduce()  # s1 t1
        def main(stopper):
            for number in range(3):
                epoch(3)  # s0 t0
                if stopper.done():  # d
                    break  # j
            barrier()  # o0
    """, {"ended": (True, True)}),
    "loader of the callee": ("""
        def epoch(loader):
            for batch in loader:  # d
                reduce()  # s1 t1
        def main(stopper):
            for number in range(3):
                epoch(loader)  # s0 t0
                if stopper.done():
                    break
            barrier()  # o0
    """, {"ended": (True, False)}),
    "the other function of the loop": ("""
        def step(x):
            reduce()  # s1
            gather()  # t1
        def evaluate(x):
            reduce()  # o1
        def main(x):
            for number in range(3):
                if x[number]:  # d
                    step(x)  # s0 t0
                else:
                    evaluate(x)  # o0
    """, {}),
    "skipped before the function": ("""
        def step(x):
            reduce()  # t1
            gather()  # s1
        def main(x):
            for number in range(3):
                if x.bad:  # d
                    continue  # j
                step(x)  # s0 t0
            barrier()  # o0
    """, {}),
    "left out in a loop of modules": ("""
        def forward(self, x, drop):
            for number, layer in enumerate(self.layers):
                if number == drop:  # d
                    continue  # j
                x = layer(x)  # s o t
            return x
    """, {"looped": "layers"}),
    "left out in a loop by if": ("""
        def forward(self, x, drop):
            for number, layer in enumerate(self.layers):
                if number != drop:  # d
                    x = layer(x)  # s o t
            return x
    """, {"looped": "layers"}),
    "role of a rank": ("""
        def f(rank, step, x):
            reduce()  # s
            if rank == 2:
                log()
            if rank == 1 and step == 3:  # d
                reduce()  # o
            gather()  # t
    """, {}),
    "role of the other rank": ("""
        def f(step, x):
            rank = dist.get_rank()
            reduce()  # s
            if rank == 0:  # d
                if step == 3:
                    gather()  # t
            barrier()  # o
    """, {}),
    "main process": ("""
        def f(accelerator, x):
            reduce()  # s
            if x > 3:
                if accelerator.is_main_process:  # d
                    gather()  # t
            barrier()  # o
    """, {}),
    "name of a condition": ("""
        def f(step, x):
            is_writer = dist.get_rank() == 0
            reduce()  # s
            if step == 3:
                if is_writer:  # d
                    gather()  # t
            barrier()  # o
    """, {}),
    "a round left out before the end of the loader": ("""
        def f(loader):
            for batch in loader:
                if batch.is_bad:  # d
                    continue  # j
                reduce()  # s t
            barrier()  # o
    """, {"ended": (True, False), "left_out": (True, False)}),
    "a rank compared with its own earlier round": ("""
        def f(rank):
            for step in range(6):
                if rank == 0:
                    send()
                elif step != 3:  # d
                    receive()  # t
                reduce()  # s o
    """, {"ranks": (1, 1)}),
    "ended": ("""
        def train(loader, loss):
            for batch in loader:
                reduce()  # s1 t1
                if loss > 3:  # d
                    return  # j
        train(3, 4)  # s0 t0
    """, {"ended": (True, True)}),
    "module level": ("""
        for step in range(3):
            reduce()  # s
            if loss > 3:  # d
                break  # j
            gather()  # t
        barrier()  # o
    """, {}),
    "async": ("""
        async def f(loader, loss):
            async for batch in loader:
                await reduce()  # s
                if loss > 3:  # d
                    break  # j
                await gather()  # t
            await barrier()  # o
    """, {}),
    "method": ("""
        class Trainer:
            def f(self, loss):
                reduce()  # s
                if loss > 3:  # d
                    self.reduce()  # o
                self.gather()  # t
    """, {}),
    "generator": ("""
        def batches(loader):
            for batch in loader:
                reduce()  # s1
                if batch.is_bad:  # d
                    continue  # j
                gather()  # t1
                yield batch
        def main(loader):
            for batch in batches(loader):  # s0 t0
                pass
            barrier()  # o0
    """, {"calling": (3, 6)}),
    "left early, within a loop of one round": ("""
        def exchange(tokens):
            all_to_all(tokens)  # s3 t3
        def forward(tokens):
            received = counts(tokens)
            exchange(tokens)  # s2
            if sum(received) == 0:  # d
                return tokens  # j
            exchange(tokens)  # t2
        def forward_all(layers, tokens):
            for layer in layers:
                layer(tokens)  # s1 t1
        def main(layers, batches):
            for step in range(30):
                forward_all(layers, batches[step])  # s0 t0
                reduce()  # o0
    """, {"calling": {2, 4, 5, 8, 11, 14, 15}}),
    "a call with the result of a function that the other is still in": ("""
        def main(loader):
            for batch in loader:  # d
                reduce()  # s1 t1
        def run(loader):
            leave(main(loader))  # s0 o0 t0
    """, {}),
    "a local condition around a batch of transfers": ("""
        def exchange(ops):
            for work in dist.batch_isend_irecv(ops):  # s2 t2
                work.wait()
        def solve(ops, tolerance):
            change = float("inf")
            while change > tolerance:  # d
                exchange(ops)  # s1 t1
                change = sweep()
        def main(ops):
            solve(ops, 1e-3)  # s0 t0
            reduce()  # o0
    """, {"ranks": (3, 3)}),
    "a stage that returned early, in its own earlier rounds": ("""
        class Stage:
            def __init__(self, rank, world):
                self.first, self.last = rank == 0, rank == world - 1
            def backward(self, loss):
                if self.last:
                    if loss.item() > 20.0:  # d
                        return  # j
                    loss.backward()
                if not self.first:
                    send()  # s1 t1
        def main(stage, source):
            for step in range(12):
                saved = []
                for _ in range(4):
                    saved.append(stage.forward(source))  # o0
                for loss in saved:
                    stage.backward(loss)  # s0 t0
    """, {"ranks": (3, 3)}),
    "a generator with fewer batches than before": ("""
        def main(rank, world, feed):
            for batch in enumerate(batches(rank, feed)):  # d
                if rank == 0:
                    step(batch)
                elif rank == world - 1:
                    step()  # s t
            barrier()  # o
    """, {"ranks": (2, 2)}),
    "parameters of a kind, and an early return before a call": ("""
        def experts(x, counts):
            if len(counts) == 1:  # d
                return x  # j
            exchange(x)  # t1
        def average(model):
            for p in model.parameters():
                if not hasattr(p, "expert"):
                    reduce(p)  # s1 o1
        def main(model):
            while True:
                experts(x, counts)  # t0
                average(model)  # s0 o0
    """, {}),
    "a parameter without a gradient": ("""
        def main(model):
            for p in model.parameters():
                if p.grad is not None:  # d
                    reduce(p)  # s t
            gather()  # o
    """, {}),
    "a function whose result another one is called with": ("""
        def fresh(model):
            broadcast(model)  # o2
        def resume(model, names):
            while names:
                if load(names.pop()):  # d
                    break  # j
            else:
                fresh(model)  # o1
        def common(step):
            gather(step)  # t1
        def main(model):
            step = common(resume(model, list_files()))  # o0 t0
    """, {}),
    "a count that all ranks have, in a rank's own earlier rounds": ("""
        def main(batches):
            for step in range(STEPS):
                receive()
                send()  # s
                if has_diverged():  # d
                    break  # j
                log()  # t
            reduce()  # o
    """, {"ranks": (2, 2)}),
    "a counter of ranks, in a rank's own earlier rounds": ("""
        def send(self, world):
            for target in range(world):
                if target == self.rank:
                    continue
                if self.budget.is_spent(target):  # d
                    continue  # j
                isend(target)  # s t
            reduce()  # o
    """, {"ranks": (1, 1)}),
    "one more buffer": ("""
        def sync(model):
            for buffer in model.buffers():  # d
                broadcast(buffer)  # s1 t1
        def main(model):
            sync(model)  # s0 t0
            reduce()  # o0
    """, {}),
}  # fmt: skip

EITHER: dict[str, tuple[str, Known]] = {
    "several functions could have returned early": ("""
        def write(state):
            if state.is_empty():  # j
                return
            barrier()  # o2
        def save(state):
            if state.is_known():  # d
                return
            write(state)  # o1
        def main(state):
            reduce()  # s0
            save(state)  # o0
            gather()  # t0
    """, {}),
    "a loop over what a seed of the rank has shuffled, and a break": ("""
        def f(self, rank):
            order = torch.Generator().manual_seed(rank)
            for batch in self.data.windows(8, order):  # d
                reduce()  # s t
                if self.budget.exhausted():  # j
                    break
            gather()  # o
    """, {}),
    "two conditions in turn": ("""
        def f(loss, norm):
            for step in range(6):
                reduce()  # s
                if loss > 3:  # j
                    break
                if norm > 3:  # d
                    break
                gather()  # t
            barrier()  # o
    """, {}),
    "a round left out or the end of the loop": ("""
        def f(loader):
            for batch in loader:  # j
                if batch.is_bad:  # d
                    continue
                reduce()  # s t
            barrier()  # o
    """, {}),
    "a name that is assigned from itself": ("""
        def main(loader):
            global count
            for batch in loader:  # j
                count = count + 1
                if count == LAST:  # d
                    break
                reduce()  # s t
            barrier()  # o
    """, {"ranks": (2, 2)}),
}  # fmt: skip

CASES |= {
    "behind a loop that both have left": ("""
        def fit(x):
            for i in range(0, len(x), 20):
                reduce()  # s3 t3
        def train(stopper):
            for epoch in range(40):
                fit(data)  # s2 t2
                if stopper.update():  # d
                    break  # j
        def main():
            train(stopper)  # s1 t1
            gather()  # o1
        main()  # s0 o0 t0
    """, {"calling": (3, 6, 10), "has_left_loop": True}),
    "what a method makes of its arguments": ("""
        def step(self, x):
            for each in self.parts_of(x):  # d
                send()  # s t
            for each in self.kept:
                receive()  # o
    """, {"ranks": (0, 0), "calling": (3,)}),
    "a swallowed exception, beside a remainder": ("""
        def on_step_end(state):
            if state.step % state.every:
                return
            gather()  # t2
        def fire(active, state):
            try:
                active.on_step_end(state)  # t1
            except ArithmeticError:  # d
                active.clear()
        def train(active, state):
            for state.step in range(1, 40):
                reduce()  # s0 o0
                fire(active, state)  # t0
    """, {"is_sure": False}),
    "another function of the same name": ("""
        class PerClass:
            def compute(self):
                for name in sorted(self.count):  # d
                    reduce()  # s1 t1
        class Confusion:
            def compute(self):
                gather()  # o1
        def compute_all(metrics):
            for each in metrics:
                each.compute()  # s0 o0 t0
    """, {}),
    "behind lines that communicated in the first round only": ("""
        def train(accelerator, model, batches, report):
            for step, x in enumerate(batches):
                loss = model(x)
                backward(loss)  # s t
                if accelerator.is_main_process and step % 5 == 4:  # d
                    report(loss)  # o
    """, {"calling": (2, 3, 4)}),
}  # fmt: skip

NO_BRANCH: dict[str, tuple[str, Known]] = {
    "a role beside the way": ("""
        def f(rank):
            for batch in loader:
                backward(batch)  # t
                gather()  # s o
                if rank == 0:
                    print(batch)
    """, {}),
    "same call": ("""
        def f(x):
            reduce()  # s o t
    """, {}),
    "straight": ("""
        def f(x):
            reduce()  # s
            reduce()  # o
            gather()  # t
    """, {}),
    "counters": ("""
        def f():
            for step in range(6):
                reduce()  # s
                if step == 3:
                    gather()  # o
                barrier()  # t
    """, {}),
    "unknown function": ("""
        def f(x):
            reduce()  # s0 o0
        def g(x):
            gather()  # t0
    """, {}),
    "constant loop": ("""
        def f():
            for step in range(STEPS):
                reduce()  # s t
            barrier()  # o
    """, {}),
    "a round left out or a count that both have": ("""
        def main(documents):
            for micro, document in zip(range(1, 121), documents):
                train(document)  # s o
                if micro % EVERY == 0:
                    report()  # t
            barrier()
    """, {}),
    "a remainder of a count, where the round is not known": ("""
        def main(self, documents):
            for document in documents:
                self.count += self.train(document)  # s o
                if self.count % self.every == 0:
                    report()  # t
    """, {"is_sure": False}),
}  # fmt: skip
