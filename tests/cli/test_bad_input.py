"""What a user gets wrong is answered by one line and the documented exit code, and nothing is touched."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.cli import odd_envs
from tests.cli.conftest import FAST, Command, everything_in

ENVS = "tests.cli.odd_envs"
TRAIN = ("train", "ppo", "CartPole-v1")

GOOD_FILE = """\
experiment:
  env: {type: gym, id: CartPole-v1, num_lanes: 2}
  budget: {env_steps: 96}
  behaviors:
    default:
      algorithm: {type: ppo, batch_size: 16}
      rollout: {type: block, num_steps: 16}
"""
BAD_FILES = {
    "not YAML": (": : :\n  - [", ""),
    "empty": ("", ""),
    "only a comment": ("# nothing\n", ""),
    "a list": ("- 1\n- 2\n", ""),
    "a tab": (GOOD_FILE.replace("  budget", "\tbudget"), "tab"),
    "a duplicate key": (GOOD_FILE + "experiment: {}\n", "experiment"),
    "an alias bomb": (
        "a: &a [x, x, x, x]\n"
        + "".join(f"{c}: &{c} [*{p}, *{p}, *{p}, *{p}]\n" for p, c in zip("abcdefgh", "bcdefghi")),  # noqa: B905
        "",
    ),
    "a tag": (GOOD_FILE.replace("96", "!!python/object/apply:os.getcwd []"), "tag"),
    "an unknown key at the top": (GOOD_FILE + "extra: 1\n", "extra"),
    "an unknown key below": (GOOD_FILE.replace("num_lanes: 2", "num_lannes: 2"), 'did you mean "num_lanes"'),
    "an unknown key far below": (GOOD_FILE.replace("batch_size", "batchsize"), 'did you mean "batch_size"'),
    "a wrong type": (GOOD_FILE.replace("num_lanes: 2", "num_lanes: two"), "num_lanes"),
    "a mapping for a number": (GOOD_FILE.replace("num_lanes: 2", "num_lanes: {a: 1}"), "num_lanes"),
    "NaN": (
        GOOD_FILE.replace("batch_size: 16", "batch_size: 16, value_coef: .nan"),
        "6:58: .nan is not a finite number",
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.parametrize("command", ["train", "validate"])
def test_a_bad_file(quintain: Command, tmp_path: Path, name: str, command: str) -> None:
    text, expected = BAD_FILES[name]
    (tmp_path / "bad.yaml").write_text(text)
    before = everything_in(tmp_path)
    answer = quintain(command, "bad.yaml")
    assert answer.exit_code == 2
    line = answer.error if command == "train" else answer.out
    assert "bad.yaml" in line
    assert expected in line
    assert everything_in(tmp_path) == before


def test_the_file_they_are_made_from_is_good(quintain: Command, tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(GOOD_FILE)
    assert quintain("validate", "good.yaml").exit_code == 0


@pytest.mark.parametrize(
    ("words", "exit_code", "expected"),
    [
        (("train", "missing.yaml"), 2, "missing.yaml"),
        (("train", "ppo"), 2, "expected FILE, or ALGO ENV"),
        (("train",), 2, "expected FILE, or ALGO ENV"),
        (("train", "pppo", "CartPole-v1"), 2, 'unknown algorithm "pppo"; did you mean "ppo"?'),
        (("train", "dreamer", "CartPole-v1"), 2, "expected one of: "),
        (("train", "ppo", "CartPole-v99"), 2, 'did you mean "CartPole-v1"?'),
        (("train", "ppo", "cartpole"), 2, 'did you mean "CartPole'),
        (("train", "ppo", "Nonsense/Env-v0"), 2, "unknown env"),
        (("train", "ppo", "no_such_module:Env"), 2, 'cannot import env "no_such_module:Env"'),
        (("train", "ppo", f"{ENVS}:Missing"), 2, "cannot import env"),
        ((*TRAIN, "learing_rate=1"), 2, 'did you mean "learning_rate"?'),
        ((*TRAIN, "experiment.behaviors.default.algorithm.foo=1"), 2, "foo"),
        ((*TRAIN, "learning_rate=nan"), 2, "learning_rate"),
        ((*TRAIN, "learning_rate=.nan"), 2, "learning_rate"),
        ((*TRAIN, "learning_rate=-1e-3"), 2, "learning_rate"),
        ((*TRAIN, "learning_rate=0"), 2, "learning_rate"),
        ((*TRAIN, "learning_rate=fast"), 2, "learning_rate"),
        ((*TRAIN, "num_lanes=0"), 2, "num_lanes"),
        ((*TRAIN, "num_lanes=2.5"), 2, "num_lanes"),
        ((*TRAIN, "batch_size=4000"), 2, "8 * 256 = 2048"),
        ((*TRAIN, "seed=-1"), 2, "seed"),
        ((*TRAIN, "seed="), 2, "no value"),
        ((*TRAIN, "=3"), 2, "no key"),
        ((*TRAIN, "device=tpu"), 2, "expected cpu, cuda"),
        ((*TRAIN, "checkpoint.keep=1"), 2, "keep"),
        ((*TRAIN, "--run-id", "../escape"), 2, "--run-id"),
        ((*TRAIN, "--run-id", "a/b"), 2, "--run-id"),
        ((*TRAIN, "--run-id", ".."), 2, "--run-id"),
        ((*TRAIN, "--run-id", "con"), 2, "--run-id"),
        ((*TRAIN, "--run-id", ""), 2, "--run-id"),
        ((*TRAIN, "--resume"), 2, "--resume needs --run-id"),
        ((*TRAIN, "--resume", "--force", "--run-id", "x"), 2, "exclude each other"),
        ((*TRAIN, "--resume", "--run-id", "x"), 3, "no run 'x'"),
        ((*TRAIN, "--quite"), 2, "did you mean --quiet?"),
        (("resume", "nothing"), 3, "no run 'nothing'"),
        (("resume", "latest"), 3, "no run in runs yet"),
        (("resume", "./nowhere"), 3, "no run directory"),
        (("eval", "nothing"), 3, "no run 'nothing'"),
        (("eval", "nothing", "--episodes", "0"), 2, "--episodes"),
        (("checkpoints", "list", "nothing"), 3, "no run 'nothing'"),
        (("train", "ppo", "CartPole-v1", "--initialize-from", "nothing"), 3, "no run 'nothing'"),
        (("list", "colours"), 2, "unknown kind"),
        (("trian", "ppo", "CartPole-v1"), 2, "trian"),
        (
            ("train", "ppo", f"{ENVS}:SequenceObs"),
            2,
            "a Sequence(Box(-1.0, 1.0, (2,), float32), stack=False) observation",
        ),
        (("train", "ppo", f"{ENVS}:WholeNumbers"), 2, "a Box(0, 5, (2,), int64) action space, which is not supported"),
        (("train", "ppo", f"{ENVS}:WrongMask"), 5, "gave an action mask of 3 options, expected 2"),
        (("train", "ppo", f"{ENVS}:NothingAllowed"), 5, "gave an action mask that allows nothing"),
        (("train", "grpo", "CartPole-v1"), 2, "experiment.env.group_size: 1 leaves nothing to compare"),
        (("train", "ppo", f"{ENVS}:NotAnEnv"), 5, "without reset"),
        (("train", "ppo", f"{ENVS}:CannotBeMade"), 5, "RuntimeError: no licence"),
        (("train", "ppo", f"{ENVS}:FailsInReset"), 5, "failed in reset() on lane 0: OSError: the simulator is gone"),
        (("train", "ppo", f"{ENVS}:WrongShape"), 5, "returned obs of shape (3,), declared Box(2)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_bad_request(
    quintain: Command, tmp_path: Path, words: tuple[str, ...], exit_code: int, expected: str
) -> None:
    answer = quintain(*words)
    assert answer.exit_code == exit_code
    assert expected in answer.error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="there is a CUDA device here")
def test_a_device_that_is_not_there(quintain: Command, tmp_path: Path) -> None:
    answer = quintain(*TRAIN, *FAST, "device=cuda")
    assert (answer.exit_code, "torch sees no CUDA device. Use cpu or auto" in answer.error) == (2, True)
    assert list(tmp_path.iterdir()) == []


# -- a run that is there ---------------------------------------------------------------------------------------------


def test_a_run_that_exists(quintain: Command, trained: Path) -> None:
    before = everything_in(trained)
    answer = quintain(*TRAIN, *FAST, "--run-id", "a1")
    assert answer.exit_code == 3
    assert 'run "a1" exists (step 96, finished)' in answer.error
    assert everything_in(trained) == before


def test_force_moves_a_run_that_exists(quintain: Command, trained: Path) -> None:
    before = everything_in(trained / "checkpoints")
    assert quintain(*TRAIN, *FAST, "--run-id", "a1", "--force", "--quiet").exit_code == 0
    (old,) = trained.parent.glob("a1.old-*")
    assert everything_in(old / "checkpoints") == before


def test_an_ambiguous_prefix(quintain: Command, trained: Path) -> None:
    shutil.copytree(trained, trained.parent / "a2")
    before = everything_in(trained.parent)
    answer = quintain("resume", "a")
    assert answer.exit_code == 3
    assert "'a' begins 2 runs" in answer.error
    assert everything_in(trained.parent) == before


def test_a_folder_that_is_no_run(quintain: Command, tmp_path: Path) -> None:
    (tmp_path / "runs" / "photos").mkdir(parents=True)
    (tmp_path / "runs" / "photos" / "1.jpg").write_bytes(b"")
    before = everything_in(tmp_path)
    for command in ("resume", "eval"):
        answer = quintain(command, "photos")
        assert (answer.exit_code, "runs/photos is not a run's directory" in answer.error) == (3, True)
    assert everything_in(tmp_path) == before


def test_changed_settings_are_named_and_refused(quintain: Command, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        (trained / "config.yaml").read_text().replace("num_epochs: 1 ", "num_epochs: 7 ")
    )
    before = everything_in(trained / "checkpoints")
    config = (trained / "config.yaml").read_text()
    answer = quintain("train", "run.yaml", "--resume", "--run-id", "a1")
    assert answer.exit_code == 2
    assert answer.error.startswith("error[E0207]: experiment.behaviors.default.algorithm.num_epochs changed 1 -> 7")
    assert everything_in(trained / "checkpoints") == before
    assert (trained / "config.yaml").read_text() == config
    # Said twice, it is meant.
    words = ("train", "run.yaml", "num_epochs=7", "budget.env_steps=128", "--resume", "--run-id", "a1", "--quiet")
    assert quintain(*words).exit_code == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [(("num_lanes=nine",), "num_lanes"), (("lerning_rate=1",), "did you mean"), (("CartPole-v1",), "key=value")],
)
def test_a_bad_change_at_resume(quintain: Command, trained: Path, words: tuple[str, ...], expected: str) -> None:
    before = everything_in(trained / "checkpoints")
    answer = quintain("resume", "a1", *words)
    assert (answer.exit_code, expected in answer.error) == (2, True)
    assert everything_in(trained / "checkpoints") == before


def test_a_run_of_other_spaces(quintain: Command, trained: Path) -> None:
    config = trained / "config.yaml"
    config.write_text(config.read_text().replace("CartPole-v1", "Acrobot-v1"))
    before = everything_in(trained / "checkpoints")
    for command in ("resume", "eval"):
        answer = quintain(command, "a1")
        assert answer.exit_code == 4
        assert "error[E0405]: checkpoint" in answer.error
    assert everything_in(trained / "checkpoints") == before


def test_a_run_with_other_weights(quintain: Command, trained: Path) -> None:
    answer = quintain("resume", "a1", "hidden_sizes=[8]", "budget.env_steps=128")
    assert answer.exit_code == 4
    assert 'the checkpoint does not fit this run (Unexpected key(s) in state_dict: "actor.' in answer.error
    assert "does not fit" in answer.error


def test_stored_settings_may_name_code_only_if_it_is_allowed(
    quintain: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = f"{ENVS}:Plain"
    assert quintain("train", "ppo", plain, *FAST, "--run-id", "mine", "--quiet").exit_code == 0
    # To another user it is a stranger's run.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state of another user"))
    run = tmp_path / "runs" / "mine"
    before = everything_in(run / "checkpoints")
    longer = ("resume", "mine", "budget.env_steps=128", "--quiet")
    answer = quintain(*longer)
    assert answer.exit_code == 4
    assert plain in answer.error
    assert "--allow" in answer.err
    assert quintain("eval", "mine").exit_code == 4
    assert everything_in(run / "checkpoints") == before
    assert quintain(*longer, "--allow", plain).exit_code == 0
    assert quintain("eval", "mine", "--allow", plain, "--episodes", "2").exit_code == 0


# -- checkpoints ------------------------------------------------------------------------------------------------------


def flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


DAMAGE = {"bit flip": flip_bit, "truncation": truncate, "missing file": Path.unlink}


@pytest.mark.parametrize("file", ["state.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint(quintain: Command, trained: Path, damage: str, file: str) -> None:
    newest = trained / "checkpoints" / "000004-step-96"
    undamaged = quintain("checkpoints", "list", "a1", "--json").json[-1]
    assert undamaged["path"].endswith(newest.name)
    DAMAGE[damage](newest / file)
    listed = quintain("checkpoints", "list", "a1", "--json").json
    assert [entry["valid"] for entry in listed] == [True, True, True, False]
    assert quintain("checkpoints", "verify", str(newest)).exit_code == 4

    # Named, it is refused; found as the latest, the one before it is used.
    answer = quintain("resume", "a1@000004-step-96")
    assert answer.exit_code == 4
    (kept,) = (trained / "checkpoints").glob(".bad-*")
    assert kept.name == ".bad-000004-step-96"
    kept.rename(newest)
    answer = quintain("resume", "a1")
    assert answer.exit_code == 0
    said = answer.out + answer.err
    assert "warning[W0401]: checkpoint 000004-step-96 is damaged" in said
    assert "using 000003-step-64" in said
    assert (trained / "checkpoints" / ".bad-000004-step-96").is_dir()
    # The lost steps are made again, and the result is as good as before.
    assert quintain("checkpoints", "list", "a1", "--json").json[-1] == {
        "path": "runs/a1/checkpoints/000005-step-96",
        "step": 96,
        "valid": True,
        "reason": "",
        "is_best": undamaged["is_best"],
        "scores": undamaged["scores"],
    }


def test_no_usable_checkpoint_left(quintain: Command, trained: Path) -> None:
    for state in (trained / "checkpoints").glob("*/state.json"):
        flip_bit(state)
    answer = quintain("resume", "a1")
    assert answer.exit_code == 4
    assert "error[E0402]: no usable checkpoint" in answer.error
    assert "4 damaged" in answer.error
    answer = quintain("resume", "a1")
    assert (answer.exit_code, "4 damaged" in answer.error) == (4, True)


def test_all_checkpoints_deleted_is_not_a_new_start(quintain: Command, trained: Path) -> None:
    shutil.rmtree(trained / "checkpoints")
    (trained / "checkpoints").mkdir()
    answer = quintain("resume", "a1")
    assert (answer.exit_code, "no usable checkpoint" in answer.error) == (4, True)


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("exploded",)


def test_a_pickle_in_place_of_a_checkpoint(quintain: Command, trained: Path, tmp_path: Path) -> None:
    checkpoints = trained / "checkpoints"
    bomb = pickle.dumps(Bomb())
    (tmp_path / "model.pt").write_bytes(bomb)
    (checkpoints / "000004-step-96" / "policy.pt").write_bytes(bomb)
    (checkpoints / "000003-step-64" / "state.json").write_bytes(bomb)
    answer = quintain("checkpoints", "verify", "model.pt")
    assert (answer.exit_code, "E0406" in answer.error) == (4, True)
    answer = quintain("checkpoints", "verify", str(checkpoints / "000004-step-96"))
    assert (answer.exit_code, "'policy.pt' is a pickle" in answer.error) == (4, True)
    answer = quintain("resume", "a1", "--quiet")
    assert answer.exit_code == 0
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    "text", ["", "[]", "\x00\x01", "experiment: {env: {type: gym, id: CartPole-v1, num_lanes: x}}"]
)
def test_a_damaged_config_of_a_run(quintain: Command, trained: Path, text: str) -> None:
    (trained / "config.yaml").write_text(text)
    before = everything_in(trained / "checkpoints")
    answer = quintain("resume", "a1")
    assert answer.exit_code == 2
    assert "config.yaml" in answer.error
    assert everything_in(trained / "checkpoints") == before


# -- environments -----------------------------------------------------------------------------------------------------


def test_a_run_says_how_often_its_environments_broke(quintain: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(odd_envs.BreaksNowAndThen, "num_steps", 0)
    words = (*FAST, "experiment.behaviors.default.events=[]", "env_workers.restart_window_seconds=60")
    answer = quintain("train", "ppo", f"{ENVS}:BreaksNowAndThen", *words)
    assert answer.exit_code == 0
    # Three rollouts of 32 steps have fewer than 96 that count, so there is a fourth; 128 steps break 6 times.
    said = " ".join((answer.out + answer.err).split())
    assert "6 environment faults" in said
    assert "note: run.env_workers.restart_window_seconds counts failures by the clock" in said


def test_an_environment_that_fails_later(quintain: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{ENVS}:FailsLater"
    monkeypatch.setattr(odd_envs.FailsLater, "num_steps", 0)
    no_evaluation = "experiment.behaviors.default.events=[]"
    words = (*FAST, no_evaluation, "checkpoint.every_updates=1", "budget.env_steps=320", "--run-id", "f", "--quiet")
    answer = quintain("train", "ppo", name, *words)
    assert answer.exit_code == 5
    # Both lanes break at every step from the 100th on, which is one of lane 1.
    assert "lane 1 failed 5 times in a row (run.env_workers.max_failures_in_a_row); first: " in answer.error
    assert "failed in step() on lane 1" in answer.error
    assert "ValueError: the gripper fell off" in answer.error
    run = tmp_path / "runs" / "f"
    report = min((run / "crash").iterdir())
    assert report.name in answer.err
    # The user's own line comes before anything of ours.
    assert report.read_text().splitlines()[1].startswith(f'  File "{odd_envs.__file__}"')
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["exit_code"], status["resumable"]) == ("failed", 5, True)
    # 100 steps of both lanes together: three rollouts of 32 were learned from, and the fourth was saved as it stood.
    assert status["checkpoint"] == "000005-step-96"
    records = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert (records[-1]["kind"], records[-1]["code"], records[-1]["step"]) == ("failed", "E0503", 96)
    assert {(record["kind"], record["code"]) for record in records[:-1]} == {("env_fault", "W0501")}

    monkeypatch.setattr(odd_envs.FailsLater, "is_mended", True)
    assert quintain("resume", "f", "--allow", name, "--quiet").exit_code == 0
    rows = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    # Broken steps do not count: five of lane 1 and four of lane 0 before the stop, and one of each that was down then.
    assert rows == [32, 64, 96, *range(96 + 32 - 11, 96 + 32 - 11 + 7 * 32 + 1, 32)]


@pytest.mark.parametrize(("name", "what"), [("NotANumber", "an observation"), ("Infinite", "a reward")])
def test_numbers_that_are_not_finite(quintain: Command, tmp_path: Path, name: str, what: str) -> None:
    answer = quintain("train", "ppo", f"{ENVS}:{name}", *FAST, "--run-id", "n", "--quiet")
    assert answer.exit_code == 6
    assert f"error[E0601]: the environment returned {what} that is not finite in lane 0" in answer.error
    listed = quintain("checkpoints", "list", "n", "--json").json
    assert [(entry["step"], entry["valid"]) for entry in listed] == [(0, True)]


# -- real processes ---------------------------------------------------------------------------------------------------


def real(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "quintain", *words]
    return warm.run(command, cwd=cwd, env=warm.ENVIRONMENT, capture_output=True)


def test_a_real_process_says_the_same(tmp_path: Path) -> None:
    ended = real("train", "ppo", "CartPole-v1", "learing_rate=1", cwd=tmp_path)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1
    assert ended.stderr.startswith("error[E0203]: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_run_in_use(quintain: Command, trained: Path, tmp_path: Path) -> None:
    holder = warm.Popen(
        [sys.executable, "-m", "quintain", "resume", "a1", "budget.env_steps=100M", "--quiet"],
        cwd=tmp_path,
        env=warm.ENVIRONMENT,
    )
    try:
        while json.loads((trained / "status.json").read_text())["pid"] != holder.pid:
            assert holder.poll() is None
        words = ("resume", "a1"), ("train", "ppo", "CartPole-v1", "--run-id", "a1", "--force")
        for answer in [quintain(*each) for each in words]:
            assert answer.exit_code == 3
            assert f'run "a1" is in use by pid {holder.pid} on host' in answer.error
        answer = quintain("train", "ppo", "CartPole-v1", "--run-id", "a1")
        assert (answer.exit_code, 'run "a1" exists' in answer.error) == (3, True)
        assert holder.poll() is None
    finally:
        holder.terminate()
        assert holder.wait(timeout=60) == 143


def test_a_run_stays_in_its_directory_when_the_environment_goes_elsewhere(quintain: Command, tmp_path: Path) -> None:
    here = tmp_path / "one" / "two"
    here.mkdir(parents=True)
    os.chdir(here)
    answer = quintain("train", "ppo", f"{ENVS}:Wanders", *FAST, "checkpoint.every_updates=1", "--run-id", "a1")
    assert answer.exit_code == 0, answer.err
    saved = {path.name.rpartition("-")[2] for path in (here / "runs" / "a1" / "checkpoints").glob("0*")}
    assert saved == {"0", "32", "64", "96"}
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["two"]
    # What to type next is meant for the directory that the user is in.
    assert "--runs-dir" not in answer.out


def never_ticks(host: object) -> None:
    """A hosted function that ends without an iteration."""


def test_a_mistake_that_shows_when_training_begins_leaves_no_traceback(quintain: Command, tmp_path: Path) -> None:
    file = tmp_path / "loop.yaml"
    file.write_text("experiment: {loop: {type: hosted, function: 'tests.cli.test_bad_input:never_ticks'}}")
    answer = quintain("train", str(file), "--run-id", "idle")
    assert (answer.exit_code, answer.error) == (
        1, "error[E0111]: never_ticks returned without a tick; call host.tick(...) at the end of each iteration",
    )  # fmt: skip
    assert "quintain resume idle   once the mistake is mended" in answer.out
    assert not (tmp_path / "runs/idle/crash").exists()
