"""What every writer promises: it takes a header, rows, notes and a summary, in this order, and never raises."""

from __future__ import annotations

import inspect
import io
import math
from dataclasses import replace
from pathlib import Path

import pytest

from quintain.core import registry
from quintain.runs.output import make_writers
from quintain.services.reporting.writers import RunHeader, RunSummary, Writer
from tests.contracts.cases import run_file

OPTIONAL = ("tensorboard", "wandb")
NAMES = [*registry.names("writer"), "list"]

HEADER = RunHeader(
    version="1", algorithm="ppo", env="CartPole-v1", num_lanes=4, device="cpu", cores=1, seed=0, run_directory=None,
    budget_env_steps=256,
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("state", ["finished", "stopped", "failed"])
def test_a_run_from_its_header_to_its_summary(name: str, state: str, tmp_path: Path) -> None:
    if name in OPTIONAL:
        pytest.importorskip(name)
    registration = registry.get("writer", name)
    settings = registration.settings_class(type=name)
    screen = io.StringIO()
    writer: Writer = registration.load()(settings, *([screen] if name == "console" else []))
    writer.open(replace(HEADER, run_directory=str(tmp_path)))
    writer.write(128, {"rollout/ep_rew_mean": 21.0, "train/policy_loss": -0.1})
    writer.write(256, {"rollout/ep_rew_mean": math.inf})
    writer.note("a note with \x1b[31m control characters\nand two lines")
    writer.close(RunSummary(state=state, seconds=1.0, env_steps=256))  # type: ignore[arg-type]  # one of the three
    assert "\x1b[31m" not in screen.getvalue(), "what a note says must not steer the terminal"
    assert ("a note with" in screen.getvalue()) == (name == "console")
    assert any(tmp_path.rglob("*")) == (name in OPTIONAL), "rows for other programs are files of the run"


@pytest.mark.parametrize("name", NAMES)
def test_it_has_the_four_methods_of_the_protocol(name: str) -> None:
    made = registry.get("writer", name).load()
    for method in ("open", "write", "note", "close"):
        wanted = list(inspect.signature(getattr(Writer, method)).parameters)
        assert list(inspect.signature(getattr(made, method)).parameters) == wanted


def test_a_writer_of_ones_own_follows_a_run(user_parts) -> None:
    from quintain.runs.assemble import assemble
    from quintain.runs.run import Run

    settings = run_file(cycles=2).replace("run.writers", ["list"])
    run = Run(settings, make_writers(settings))
    assemble(settings, run, run.writer).train()
    told = [what for what, _ in user_parts.ListWriter.told if what != "note"]
    assert told == ["open", "write", "write", "close"]
    assert [step for what, step in user_parts.ListWriter.told if what == "write"] == [128, 256]
