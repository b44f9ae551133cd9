"""Marker `same_values`: a test has the same values in every layout, or fails."""

from __future__ import annotations

pytest_plugins = ["pytester"]

MODEL = """
from torch import nn
from dtensor_core import Replicate, distribute_tensor
from dtensor_core.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))

def train(layout, grad=lambda g: g, where="up.weight"):
    model = Net()
    x = torch.randn(4, 8)
    if layout.mesh is not None:
        model = parallelize_module(model, layout.mesh["tp"],
            {"up": ColwiseParallel(), "down": RowwiseParallel()})
        model.get_parameter(where).register_hook(grad)
    loss = model(x).pow(2).mean()
    layout.recording.observe("loss", loss)
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
"""


def test_layouts_agree_or_fail_one_by_one_with_their_names(project) -> None:
    text = project.failure(
        MODEL
        + """
same = pytest.mark.same_values

@same(layouts=[{}, {"tp": 2}, {"dp": 2, "tp": 2}], ranks=run_threads)
def test_agrees(layout):
    assert layout.sizes.get("tp", 1) == (layout.mesh["tp"].size() if layout.mesh else 1)
    train(layout)

@same(layouts=[{}, {"tp": 2}, {"tp": 4}], ranks=run_threads, reference=True, values="module")
@pytest.mark.parametrize("factor", [2])
def test_differs(layout, factor):
    train(layout, lambda grad: grad * factor)

@same(layouts=[{}, {"tp": 2}, {"tp": 4}], ranks=run_threads)
def test_fails_in_one(layout):
    if layout.world_size == 2:
        raise ValueError("no such layout")
    train(layout)

@same(layouts=[{}, {"tp": 2}], ranks=run_threads)
def test_hangs(layout):
    if layout.mesh is not None and dist.get_rank() == 0:
        dist.barrier()
    train(layout)

@same(layouts=[{}, {"tp": 2}], ranks=run_threads)
def test_fails_on_one_device(layout):
    assert layout.mesh is not None

@same(layouts=[{}, {"tp": 2}], ranks=run_threads)
def test_observes_nothing(layout):
    pass

@same(layouts=[{}, {"tp": 2}], ranks=run_threads, reference=True)
def test_computes_something_else_in_float64(layout):
    torch.manual_seed(torch.get_default_dtype().itemsize)
    train(layout)

def test_without_the_marker(layout):
    pass
"""
    )
    assert "6 failed, 1 passed, 1 error" in text
    differs = text[text.index("test_differs[2] _") : text.index("test_fails_in_one _")]
    assert "@pytest.mark.same_values: 2 of 2 layouts differ from one device" in differs
    assert (
        "layout tp=2: gradient up.weight is wrong in tp=2: it is 2 times what it should be: 2 is "
        "the size of mesh axis tp, as if reduced over it once too often"
    ) in differs
    assert "layout tp=4: gradient up.weight is wrong in tp=4: it is 2 times" in differs
    assert "first run   on one rank, float32, norm" in differs
    assert "second run  tp:S(0), float32, norm" in differs
    assert "--reference" not in differs
    one = text[text.index("test_fails_in_one _") : text.index("test_hangs _")]
    assert "1 of 2 layouts differs from one device" in one
    assert "layout tp=2: " in one
    assert "ValueError: no such layout" in one
    assert "layout tp=4" not in one
    hangs = text[text.index("test_hangs _") : text.index("test_fails_on_one_device _")]
    assert "layout tp=2: " in hangs
    assert "barrier" in hangs
    assert "assert layout.mesh is not None" in text
    assert "cannot compare the tensors of the first run" in text
    assert "reference=True needs a test that computes the same in float64" in text
    assert "the fixture layout is of tests with the marker same_values" in text


def test_ranks_are_processes_with_a_deadline(project) -> None:
    text = project.failure(
        MODEL
        + """
@pytest.mark.same_values(layouts=[{}, {"tp": 2}], values="module", timeout_s=60)
def test_processes(layout):
    train(layout, lambda grad: grad / 2)
    assert torch.get_default_dtype() == torch.float32
"""
    )
    assert (
        "layout tp=2: gradient up.weight is wrong in tp=2: it is 1/2 of what it should be" in text
    )


def test_a_hang_of_processes_ends_with_a_report(project) -> None:
    text = project.failure(
        MODEL
        + """
import time

@pytest.mark.same_values(layouts=[{}, {"tp": 2}], timeout_s=8)
def test_hangs(layout):
    if layout.mesh is not None and dist.get_rank() == 1:
        time.sleep(600)
    train(layout)
"""
    )
    assert "layout tp=2: test_hangs did not end within 8 s" in text
    assert "time.sleep(600)" in text or "test_hangs" in text[text.index("still running") :]


INVALID = {
    "layouts=[{}], x=1": "has an unknown argument 'x'",
    "": "found: no layouts",
    "layouts=[]": "found: no layouts",
    "layouts=[{}]": "found: layouts=[{}]",
    "layouts=[{}, 2]": "a layout has the size of each mesh axis by name",
    "layouts=[{}, {'': 2}]": "a layout has the size of each mesh axis by name",
    "layouts=[{}, [('tp', 2), ('tp', 2)]]": "axis tp occurs twice",
    "layouts=[{}, {'tp': 0}]": "the size of axis tp must be a positive integer",
    "layouts=[{}, {'tp': True}]": "the size of axis tp must be a positive integer",
    "layouts=[{}, {'tp': '2'}]": "the size of axis tp must be a positive integer",
    "layouts=[{'tp': 2}, {'tp': 2}]": "has a layout twice",
    "layouts=[{}, {'tp': 2}], values='all'": "values is 'module' or 'op'",
    "layouts=[{}, {'tp': 2}], reference=1": "reference is False or True",
    "layouts=[{}, {'tp': 2}], ranks='threads'": "ranks is a function that runs a function",
    "layouts=[{}, {'tp': 2}], timeout_s=0": "it is a positive number of seconds",
    "[{}, {'tp': 2}]": "has positional arguments",
}


def test_invalid_arguments_are_errors_in_four_parts(project) -> None:
    body = "".join(
        f"\n@pytest.mark.same_values({arguments})\ndef test_{number}_(layout):\n    pass\n"
        for number, arguments in enumerate(INVALID)
    )
    body += "\n@pytest.mark.same_values(layouts=[{}, {'tp': 2}])\ndef test_last_():\n    pass\n"
    project.write(body)
    text = project.run().stdout.str()
    places = [text.index(f"test_{number}_ _") for number in [*range(len(INVALID)), "last"]]
    for (arguments, expected), begin, end in zip(
        INVALID.items(), places[:-1], places[1:], strict=True
    ):
        error = text[begin:end]
        assert expected in error, (arguments, error)
        assert all(part in error for part in ("found: ", "why: ", "try: ")), (arguments, error)
    assert "found: no argument layout" in text[places[-1] :]


def test_the_marker_is_listed(project) -> None:
    project.write("")
    text = project.run("--markers").stdout.str()
    assert "@pytest.mark.same_values(layouts=[{}, {'tp': 2}], values='op'" in text
