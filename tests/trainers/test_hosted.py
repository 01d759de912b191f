"""Hosted functions: what they keep comes back in place, what they are told is true, and what they do wrong is named."""

from __future__ import annotations

import json
import os
import random
import signal
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import quintain
from quintain.errors import CheckpointIncompatible, HostedError, SettingsError
from quintain.services.checkpoints.catalog import CheckpointCatalog
from quintain.services.checkpoints.state_files import decode, encode, parse
from quintain.settings.tree import RunFile
from quintain.trainers.hosted import KeptParts
from tests.resume.outcome import digest_of

QUIET: dict[str, Any] = {"writers": [], "checkpoint.every_seconds": None}


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def through_files(state: Any) -> Any:
    encoded = encode({"training": state})
    return decode(parse(encoded.tensor_bytes(), encoded.document_bytes()))["training"]


OPTIMIZERS = {
    "adam": partial(torch.optim.Adam, lr=0.02, amsgrad=True),
    "adamw": partial(torch.optim.AdamW, lr=0.02, weight_decay=0.1),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "adafactor": partial(torch.optim.Adafactor, lr=0.05),
    "lbfgs": partial(torch.optim.LBFGS, lr=0.1, max_iter=3),
}
SCHEDULES = {
    "adam": partial(lr_scheduler.MultiStepLR, milestones=[2, 4]),
    "adamw": partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=20),
    "rmsprop": partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=3),
    "sgd": partial(lr_scheduler.ReduceLROnPlateau, patience=1),
    "adafactor": partial(lr_scheduler.LambdaLR, lr_lambda=lambda epoch: 0.9**epoch),
    "lbfgs": partial(lr_scheduler.ExponentialLR, gamma=0.9),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_and_schedules_of_torch_go_on_to_the_last_bit(name: str) -> None:
    def make() -> tuple[dict[str, Any], nn.Module]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizer = OPTIMIZERS[name](model.parameters())
        return {"model": model, "schedule": SCHEDULES[name](optimizer), "optimizer": optimizer}, model

    def go_on(parts: dict[str, Any], num_steps: int) -> None:
        for _ in range(num_steps):
            x = torch.randn(16, 3)

            def closure(x: torch.Tensor = x) -> torch.Tensor:
                parts["optimizer"].zero_grad()
                loss = (parts["model"](x) - x.sum(1, keepdim=True)).square().mean()
                loss.backward()
                return loss

            loss = parts["optimizer"].step(closure)
            parts["schedule"].step(*([loss.detach()] if name == "sgd" else []))

    (first, whole), (second, resumed) = make(), make()
    before = KeptParts(first)
    go_on(first, 5)
    streams, state = torch.get_rng_state(), through_files(before.state_dict())
    go_on(first, 5)
    after = KeptParts(second)
    after.load_state_dict(state)
    after.add(second)
    torch.set_rng_state(streams)
    go_on(second, 5)
    assert all(a.equal(b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
    assert encode({"training": before.state_dict()}).digest() == encode({"training": after.state_dict()}).digest()


@dataclass
class Numbers:
    count: int = 0
    best: float = float("-inf")
    name: str = "a"
    pair: tuple[int, float] = (0, 0.0)
    row: np.ndarray = field(default_factory=lambda: np.zeros(3))
    by_epoch: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Frozen:
    count: int = 0


def test_dataclasses_generators_and_arrays_come_back_in_place() -> None:
    def make() -> dict[str, Any]:
        return {
            "numbers": Numbers(),
            "of_numpy": np.random.default_rng(3),
            "of_torch": torch.Generator().manual_seed(3),
            "array": np.zeros(2, np.float32),
            "tensor": torch.zeros(2),
        }

    used, fresh = make(), make()
    row = fresh["numbers"].row
    used["numbers"].count, used["numbers"].best, used["numbers"].pair = 7, 0.5, (2, 1.5)
    used["numbers"].row[1] = 4.0
    used["array"] += 1
    used["tensor"] += 2
    drawn = used["of_numpy"].random(5), torch.rand(5, generator=used["of_torch"])
    kept = KeptParts(fresh)
    kept.load_state_dict(through_files(KeptParts(used).state_dict()))
    kept.add(fresh)
    found = fresh["numbers"]
    assert (found.count, found.best, found.name, found.pair) == (7, 0.5, "a", (2, 1.5))
    assert found.row is row
    assert row.tolist() == [0.0, 4.0, 0.0]
    assert (fresh["array"].tolist(), fresh["tensor"].tolist()) == ([1, 1], [2, 2])
    assert fresh["of_numpy"].random() == used["of_numpy"].random() != drawn[0][0]
    assert torch.rand(1, generator=fresh["of_torch"]) == torch.rand(1, generator=used["of_torch"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda parts: parts["numbers"].update(count="7"), "numbers.count is '7', expected a whole number"),
        (lambda parts: parts["numbers"].update(count=True), "numbers.count is True, expected a whole number"),
        (lambda parts: parts["numbers"].update(best="x"), "numbers.best is 'x', expected a number"),
        (lambda parts: parts["numbers"].update(row=np.zeros(3, np.int64)), "has numbers of int64, expected float64"),
        (lambda parts: parts["numbers"].update(train=1), "numbers has .*'train'.*, expected"),
        (lambda parts: parts["sgd"]["groups"][0].update(lr="0.1"), r"groups\[0\]\['lr'\] is '0.1', expected a number"),
        (lambda parts: parts["sgd"]["groups"][0].update(names=["model.bias"]), "the names of parameters is"),
        (lambda parts: parts["sgd"]["state"].update({"model.w": {}}), "the names in its state is .*model.w'"),
        (
            lambda parts: parts["sgd"]["state"]["model.weight"].update(momentum_buffer=np.zeros((1, 3), np.float32)),
            r"momentum_buffer of model.weight is \[1, 3\] in the checkpoint, and \[1, 2\] here",
        ),
        (lambda parts: parts["model"].update(weight=np.zeros((1, 3), np.float32)), "size mismatch for weight"),
        (lambda parts: parts["steps"].update(gamma=[]), r"steps\['gamma'\] is '\[\]', expected a number"),
        (lambda parts: parts["steps"].update(step=1), "steps has .*'step'"),
    ],
)
def test_a_state_that_was_changed_is_refused(change: Any, said: str) -> None:
    def make() -> dict[str, Any]:
        model = nn.Linear(2, 1)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return {"numbers": Numbers(), "model": model, "sgd": sgd, "steps": lr_scheduler.StepLR(sgd, 2)}

    used = make()
    used["model"](torch.ones(2)).sum().backward()
    used["sgd"].step()
    state = through_files(KeptParts(used).state_dict())
    change(state["parts"])
    kept = KeptParts(fresh := make())
    kept.load_state_dict(state)
    with pytest.raises(CheckpointIncompatible, match=said):
        kept.add(fresh)


def test_a_run_that_is_stopped_and_resumed_is_the_run_that_was_not() -> None:
    """Stops by a signal inside an iteration, and once more by the budget; a `finally` spoils what is not saved."""
    cleaned = []

    def stopping(host: Any, stop_at: int | None = None) -> None:
        model = nn.Linear(2, 1)
        host.keep(model=model)
        try:
            while True:
                with torch.no_grad():
                    model.weight += torch.randn(1, 2) * (host.iteration + 1)
                if host.iteration == stop_at:
                    os.kill(os.getpid(), signal.SIGTERM)
                host.tick(4, {"weight": model.weight.sum()})
        finally:
            cleaned.append(host.progress.iteration)
            torch.rand(1), random.random()
            model.weight.data.zero_()

    assert quintain.host(partial_named(stopping), run_id="whole", updates=9, **QUIET).state == "finished"
    with pytest.raises(SystemExit, match="143"):
        # As Ctrl-C raises KeyboardInterrupt: what follows in a script does not run.
        quintain.host(partial_named(stopping, 3), run_id="stopped", updates=9, **QUIET)
    stopped = json.loads(Path("runs/stopped/status.json").read_text())
    assert (stopped["state"], stopped["exit_code"]) == ("stopped", 143)
    assert quintain.host(partial_named(stopping), run_id="stopped", resume=True, updates=9, **QUIET).state == "finished"
    assert cleaned == [9, 4, 9]
    assert digest_of(Path("runs/whole")) == digest_of(Path("runs/stopped"))
    rows = [json.loads(line) for line in Path("runs/stopped/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [4 * number for number in range(1, 10)]
    assert all("train/weight" in row for row in rows)


def partial_named(function: Any, *arguments: Any) -> Any:
    """Returns a function under one name whatever its arguments: the run's settings stay the same."""

    def called(host: Any) -> None:
        function(host, *arguments)

    return called


def test_objects_that_exist_before_are_restored_before_the_call_and_a_function_may_end_by_itself() -> None:
    def fitting(host: Any, numbers: Numbers, stop_at: int | None = None) -> None:
        seen.append(numbers.count)
        while numbers.count < 5:
            numbers.count += 1
            numbers.row += np.random.normal(size=3)  # noqa: NPY002
            if numbers.count == stop_at:
                host.stop("asked")
            host.tick()
        numbers.name = "done"

    seen: list[int] = []
    for run_id, stop_at in (("whole", None), ("stopped", 2), ("stopped", None), ("stopped", None)):
        numbers = Numbers()
        function = partial_named(fitting, numbers, stop_at)
        summary = quintain.host(function, run_id=run_id, resume=True, keep={"numbers": numbers}, **QUIET)
        assert summary.state == ("stopped" if stop_at else "finished")
    assert seen == [0, 0, 2], "and a run that has finished is not called again"
    assert digest_of(Path("runs/whole")) == digest_of(Path("runs/stopped"))
    newest = CheckpointCatalog(Path("runs/stopped/checkpoints")).latest(print)
    assert json.loads((newest.path / "manifest.json").read_text())["about"]["exactness"] == "exact"
    assert (newest.path / "state.json").read_text().count('"name":"done"') == 1


def test_a_function_that_never_reads_its_position_is_called_statistical(capfd: pytest.CaptureFixture[str]) -> None:
    def blind(host: Any) -> None:
        model = nn.Linear(2, 1)
        host.keep(model=model)
        for _ in range(3):
            host.tick()

    quintain.host(blind, run_id="blind", **{"checkpoint.every_seconds": None})
    newest = CheckpointCatalog(Path("runs/blind/checkpoints")).latest(print)
    about = json.loads((newest.path / "manifest.json").read_text())["about"]
    assert about["exactness"].startswith("statistical: blind never reads where it stands (host.iteration,")
    assert capfd.readouterr().out.count("warning[W0402]: determinism L1: a resume is not exact; statistical") == 1


def test_an_error_names_the_line_of_the_function() -> None:
    def broken(host: Any) -> None:
        host.keep(model=nn.Linear(2, 1))
        while True:
            host.tick()
            nn.functional.linear(torch.zeros(3), torch.zeros(2, 2))  # this line

    lines = Path(__file__).read_text().splitlines()
    number = next(number for number, line in enumerate(lines, 1) if line.endswith("# this line"))
    with pytest.raises(HostedError, match=rf"broken: RuntimeError: .*raised in test_hosted\.py:{number}\. Mend it"):
        quintain.host(broken, run_id="broken", **QUIET)


@pytest.mark.parametrize(
    ("parts", "later", "error", "said"),
    [
        ({"a": 3}, None, HostedError, "a is a int, which cannot be restored in place; put it into a dataclass"),
        ({"a": Path()}, None, HostedError, "a is a PosixPath, which cannot be kept; keep a module"),
        ({"a": {"b": nn.Linear(1, 1)}}, None, HostedError, "a is a dict, .* keep modules in it by names of their own"),
        ({"a": Frozen()}, None, HostedError, "a is a frozen dataclass, which cannot be restored in place"),
        (
            {"a": np.zeros(2)},
            {"b": np.zeros(2)},
            CheckpointIncompatible,
            "the checkpoint has no b, which called keeps",
        ),
        (
            {"a": np.zeros(2), "b": np.zeros(2)},
            {"a": np.zeros(2)},
            CheckpointIncompatible,
            "has b, which called did not",
        ),
        ({"a": np.zeros(2)}, {"a": np.zeros(3)}, CheckpointIncompatible, "the checkpoint's a does not fit the one"),
    ],
)
def test_parts_that_cannot_be_kept_or_are_others_are_refused(parts: Any, later: Any, error: Any, said: str) -> None:
    def keeping(host: Any, parts: Any, num: int) -> None:
        host.keep(**parts)
        for _ in range(num):
            host.tick()
        host.stop("enough")
        host.tick()

    if later is not None:
        quintain.host(partial_named(keeping, parts, 2), run_id="keeping", **QUIET)
    with pytest.raises(error, match=said):
        quintain.host(partial_named(keeping, later or parts, 2), run_id="keeping", resume=True, **QUIET)


def test_a_function_is_told_what_it_calls_wrongly() -> None:
    with pytest.raises(HostedError, match="returned without a tick; call host"):
        quintain.host(lambda host: None, run_id="idle", **QUIET)
    with pytest.raises(HostedError, match="tick got env_steps=-1, expected a whole number from 0"):
        quintain.host(lambda host: host.tick(-1), run_id="back", **QUIET)
    with pytest.raises(HostedError, match=r"tick got the metric loss = tensor\(\[0., 0.\]\), expected one number"):
        quintain.host(lambda host: host.tick(np.int64(1), {"loss": torch.zeros(2)}), run_id="vector", **QUIET)
    with pytest.raises(SettingsError, match=r"with a host and experiment.loop.kwargs \['rate'\]: got an unexpected"):
        quintain.host(lambda host: None, run_id="wrong", kwargs={"rate": 1}, **QUIET)
    with pytest.raises(SettingsError, match=r"takes a function, and this is 'a:b'; import it first"):
        quintain.host("a:b", **QUIET)
    with pytest.raises(SettingsError, match="a hosted function runs in one process; set it to 1"):
        RunFile.from_mapping({"experiment": {"loop": {"type": "hosted", "function": "a:b"}}}, "num_ranks=2")
