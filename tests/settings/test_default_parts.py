"""Naming an event or a writer adds it to the defaults; `none` leaves them out."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintain import RunFile, Trainer
from quintain.errors import SettingsError
from quintain.trainers.settings import LogDataSettings

LOG = {"type": "log_data", "every_updates": 1}
BY_HAND = "{type: log_data, every_updates: 1}"


def named(run_file: RunFile) -> tuple[list[str], list[str]]:
    [behavior] = run_file.experiment.behaviors.values()
    return [event.type for event in behavior.events], [writer.type for writer in run_file.run.writers]


@pytest.mark.parametrize(
    ("events", "writers", "expected"),
    [
        (f"[{BY_HAND}]", "[tensorboard]", (["evaluate", "log_data"], ["console", "tensorboard"])),
        (f"[none, {BY_HAND}]", "[none, tensorboard]", (["none", "log_data"], ["none", "tensorboard"])),
        ("[]", "[]", ([], [])),
        (f"[{BY_HAND}, evaluate]", "[{type: console}]", (["log_data", "evaluate"], ["console"])),
    ],
)
def test_overrides_and_files_add_to_the_defaults(
    tmp_path: Path, events: str, writers: str, expected: tuple[list[str], list[str]]
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "experiment:\n  env: {type: gym, id: CartPole-v1}\n"
        f"  behaviors: {{default: {{algorithm: ppo, events: {events}}}}}\nrun: {{writers: {writers}}}\n"
    )
    by_file = RunFile.load(path)
    assert named(RunFile.from_names("ppo", "CartPole-v1", f"events={events}", f"writers={writers}")) == expected
    assert named(by_file) == expected
    # What is written out is complete, so that it can be read back, and origins stay with their values.
    by_file.save(tmp_path / "again.yaml")
    assert RunFile.load(tmp_path / "again.yaml") == by_file
    for place, event in enumerate(expected[0]):
        if event == "log_data":
            assert by_file.origins[f"experiment.behaviors.default.events.{place}.every_updates"] == f"{path}:3"


def test_what_python_names_is_added_and_what_code_replaces_is_not() -> None:
    for events in ([LOG], [LogDataSettings(every_updates=1)]):
        trainer = Trainer("ppo", "CartPole-v1", num_lanes=1, batch_size=64, events=events, writers=[])
        assert [entry.name for entry in trainer.events.entries] == ["evaluate", "log_data"]
        trainer.close()
    exact = RunFile.from_names("ppo", "CartPole-v1").replace("events", [LOG])
    assert named(exact) == (["none", "log_data"], ["console"])


def test_a_mistake_in_a_list_keeps_its_line(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "experiment:\n  env: {type: gym, id: CartPole-v1}\n  behaviors:\n    default:\n      algorithm: ppo\n"
        "      events:\n      - {type: log_data, every_updates: x}\n"
    )
    with pytest.raises(SettingsError, match=r"run.yaml:7:\d+: experiment.behaviors.default.events.1.every_updates"):
        RunFile.load(path)


def test_the_lists_of_a_stored_run_and_of_agents_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "experiment:\n  env: {type: gym, id: CartPole-v1}\n"
        f"  behaviors: {{default: {{algorithm: ppo, events: [{BY_HAND}]}}}}\nrun: {{writers: [tensorboard]}}\n"
    )
    assert named(RunFile.load(path, is_complete=True)) == (["log_data"], ["tensorboard"])
    # The console is asked for beside what the run has.
    assert named(RunFile.load(path, "writers=[wandb]", is_complete=True))[1] == ["console", "wandb"]
    agents = RunFile.from_names("ppo", "agents/a:B", f"events=[{BY_HAND}]")
    assert named(agents)[0] == ["log_data"]
