"""Runs that a stranger made, and runs of one's own: which of them may import code, and how that is known."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from quintain.services import signatures
from quintain.services.checkpoints import files as checkpoint_files
from quintain.services.files import atomic
from tests.cli.conftest import FAST, Command

ENV = "tests.cli.odd_envs:Plain"
COMMANDS = (("resume", "mine", "budget.env_steps=128", "--quiet"), ("eval", "mine", "--episodes", "2"))


@pytest.fixture
def own(quintain: Command, tmp_path: Path) -> Path:
    """A run of the user's own code."""
    assert quintain("train", "ppo", ENV, *FAST, "--run-id", "mine", "--quiet").exit_code == 0
    return tmp_path / "runs" / "mine"


@pytest.fixture
def friend(quintain: Command, tmp_path: Path) -> Path:
    """A run in plain CartPole whose config.yaml was changed by a stranger, with a payload inside the run."""
    assert quintain("train", "ppo", "CartPole-v1", *FAST, "--run-id", "friend", "--quiet").exit_code == 0
    run = tmp_path / "runs" / "friend"
    payload = f"from pathlib import Path\nPath({str(tmp_path / 'exploded')!r}).touch()\nclass Signal: ...\n"
    (run / "payload.py").write_text(payload)
    (tmp_path / "beside.py").write_text(payload)
    return run


def change(run: Path, old: str, new: str) -> None:
    config = run / "config.yaml"
    text = config.read_text()
    assert text.count(old) == 1
    config.write_text(text.replace(old, new))


def reseal(run: Path, **about: object) -> None:
    """Changes manifests as a stranger can, who does not have the key."""
    for path in run.glob("checkpoints/0*/manifest.json"):
        content = json.loads(path.read_text())
        content["about"].update(about)
        manifest = checkpoint_files.read_manifest(path.parent)
        changed = checkpoint_files.Manifest(
            manifest.commit, manifest.step, manifest.is_best, manifest.digest, manifest.files, content["about"],
            signature=manifest.signature,
        )  # fmt: skip
        path.write_bytes(changed.render())


class TestStrangers:
    @pytest.mark.parametrize("words", [("eval",), ("export",), ("resume",), ("train", "--initialize-from")])
    @pytest.mark.parametrize("where", ["runs.friend.payload", "beside"])
    def test_a_reward_signal_named_by_its_key_is_code(
        self, quintain: Command, friend: Path, tmp_path: Path, words: tuple[str, ...], where: str
    ) -> None:
        change(friend, "        extrinsic:\n          type: extrinsic", f'        "{where}:Signal":\n#')
        answer = quintain(*words, "friend")
        assert (answer.exit_code, "E0407" in answer.error) == (4, True)
        assert f"--allow {where}:Signal" in answer.error
        assert not (tmp_path / "exploded").exists()

    def test_code_inside_the_run_is_not_imported_even_if_it_is_allowed(
        self, quintain: Command, friend: Path, tmp_path: Path
    ) -> None:
        change(friend, "        extrinsic:\n          type: extrinsic", '        "runs.friend.payload:Signal":\n#')
        answer = quintain("eval", "friend", "--allow", "runs.friend.payload:Signal")
        assert (answer.exit_code, "lies inside the run directory" in answer.error) == (4, True)
        assert not (tmp_path / "exploded").exists()

    def test_arguments_of_an_environment_that_name_code_are_seen(self, quintain: Command, friend: Path) -> None:
        change(friend, "    kwargs: {}", "    kwargs: {wrappers: [{entry_point: beside:Signal}]}\n#")
        answer = quintain("eval", "friend")
        assert (answer.exit_code, "--allow beside:Signal" in answer.error) == (4, True)

    def test_what_starts_processes_is_code_though_it_is_quintains(
        self, quintain: Command, friend: Path, tmp_path: Path
    ) -> None:
        """With settings of its own, whose environment Gymnasium would import, it would be a way around every check."""
        name = "quintain.placements.collector_process:CollectorProcess"
        change(friend, "    id: CartPole-v1", f'    id: "{name}"\n#')
        answer = quintain("eval", "friend")
        assert (answer.exit_code, f"--allow {name}" in answer.error) == (4, True)

    def test_a_run_without_code_needs_no_permission(self, quintain: Command, friend: Path) -> None:
        change(friend, "seed: 0", "seed: 7")
        assert quintain("eval", "friend", "--episodes", "2").exit_code == 0


class TestOwn:
    @pytest.mark.parametrize("words", COMMANDS)
    def test_needs_no_permission(self, quintain: Command, own: Path, words: tuple[str, ...]) -> None:
        assert quintain(*words).exit_code == 0

    def test_moved_and_renamed_it_is_still_ones_own(self, quintain: Command, own: Path, tmp_path: Path) -> None:
        shutil.copytree(own, tmp_path / "elsewhere" / "renamed")
        shutil.rmtree(own)
        assert quintain("eval", "elsewhere/renamed", "--episodes", "2").exit_code == 0
        assert (
            quintain("train", "--initialize-from", "elsewhere/renamed", "--run-id", "child", "--quiet").exit_code == 0
        )
        assert quintain("eval", "child", "--episodes", "2").exit_code == 0

    def test_a_resume_that_changes_the_settings_signs_them(self, quintain: Command, own: Path) -> None:
        assert quintain(*COMMANDS[0]).exit_code == 0
        assert "128" in (own / "config.yaml").read_text()
        assert quintain(*COMMANDS[1]).exit_code == 0

    @pytest.mark.parametrize(
        ("spoil", "said"),
        [
            (lambda run: change(run, "seed: 0", "seed: 1"), "config.yaml of this run was changed"),
            (lambda run: change(run, "# signature ", "# "), "config.yaml of this run is not signed"),
            (lambda run: reseal(run, fingerprint="another"), "of this run was changed, or made by another user"),
        ],
    )
    @pytest.mark.parametrize("words", COMMANDS)
    def test_changed_it_asks(
        self, quintain: Command, own: Path, words: tuple[str, ...], spoil: object, said: str
    ) -> None:
        spoil(own)  # type: ignore[operator]
        answer = quintain(*words)
        assert answer.exit_code == 4
        lines = (own / "config.yaml").read_text().splitlines()
        number = 1 + next(place for place, line in enumerate(lines) if line.startswith("    id: "))
        assert answer.error.startswith(f"error[E0407]: {own / 'config.yaml'}:{number}:5: experiment.env.id: ")
        assert said in answer.error
        assert f"--allow {ENV}" in answer.error
        assert quintain(*words, "--allow", ENV).exit_code == 0

    def test_of_another_user_it_asks(self, quintain: Command, own: Path, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
        answer = quintain(*COMMANDS[1])
        assert (answer.exit_code, "made by another user or on another machine" in answer.error) == (4, True)

    def test_where_no_key_can_be_kept_it_asks_and_says_why(
        self, quintain: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
        answer = quintain("train", "ppo", ENV, *FAST, "--run-id", "mine")
        assert answer.exit_code == 0
        # What to do next is told as it will be needed.
        assert f"eval mine --allow {ENV}" in answer.out
        answer = quintain(*COMMANDS[1])
        assert answer.exit_code == 4
        assert f"cannot be known as yours (the key {tmp_path / 'file' / 'quintain' / 'run-key'}" in answer.error
        assert quintain(*COMMANDS[1], "--allow", ENV).exit_code == 0

    def test_the_key_is_in_no_file_of_the_run(self, own: Path) -> None:
        key = signatures.key_path().read_text().strip()
        found = [path for path in own.rglob("*") if path.is_file()]
        assert found
        assert not [
            path for path in found if key.encode() in path.read_bytes() or bytes.fromhex(key) in path.read_bytes()
        ]

    def test_a_kill_while_settings_are_written_leaves_it_ones_own(
        self, quintain: Command, own: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replace_file = atomic.replace_file

        class Killed(BaseException): ...

        def replace_and_die(path: Path, data: bytes) -> None:
            replace_file(path, data)
            if path.name == "config.yaml":
                raise Killed

        monkeypatch.setattr(atomic, "replace_file", replace_and_die)
        with pytest.raises(Killed):
            quintain(*COMMANDS[0])
        monkeypatch.undo()
        monkeypatch.chdir(own.parents[1])
        assert quintain(*COMMANDS[0]).exit_code == 0
