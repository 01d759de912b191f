"""`online_dict`: defaults for every key, refusals with both names, and what becomes of it in a run file."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from quintain.errors import SettingsError
from quintain.online import (
    BaseTrainer,
    OnlineConfig,
    file_settings,
    online_config,
    runner,
    start_rolloutmanager,
    start_trainer,
)
from quintain.online.config import idle_keys, refuse_missing_gpus
from quintain.online.ray_actors import ask, is_actor
from quintain.online.runner import RayPlace, train_online
from quintain.online.settings import WITHOUT_EFFECT, WITHOUT_EFFECT_ON_RAY
from quintain.online.translate import Generators, run_settings
from quintain.runs.ranks.on_ray import RayEnd, RayRun
from quintain.services.reporting.writers import RunSummary
from quintain.settings.base import Settings
from quintain.settings.tree import RunFile
from tests.online.parts import OwnTrainer, env_generator, online_dict, policy_generator

PAGE = Path(__file__).parents[2] / "docs" / "migrating" / "minestudio.md"


def leaves(config: Any, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in config:
        below = leaves(value, f"{prefix}{name}.") if isinstance(value, Settings) else {f"{prefix}{name}": value}
        found |= below
    return found


def run_file(given: Any) -> RunFile:
    generators = Generators(policy_generator, env_generator)
    return RunFile.from_mapping(run_settings(online_config(given), generators))


def test_every_key_has_a_default_that_makes_a_run_file() -> None:
    settings = run_file({}).to_dict()
    behavior = settings["experiment"]["behaviors"]["default"]
    assert behavior["rollout"]["num_fragments"] == 200
    assert behavior["rollout"]["capacity"] == 4800
    # 10 micro-batches of one fragment of 256 steps in each optimizer step.
    assert behavior["algorithm"]["batch_size"] == 2560
    assert settings["experiment"]["budget"]["updates"] == 4000


def test_values_arrive_where_the_run_file_has_them() -> None:
    given = online_dict(2, discount=0.5, kl_divergence_coef_rho=0.2, anneal_lr_linearly=True, num_iterations=7)
    given["rollout_config"]["num_rollout_workers"] = 2
    settings = run_file(given).to_dict()
    behavior, run = settings["experiment"]["behaviors"]["default"], settings["run"]
    assert settings["experiment"]["env"]["num_lanes"] == 4
    assert settings["experiment"]["env"]["num_collectors"] == 2
    assert settings["experiment"]["env"]["kwargs"]["generator"] == "tests.online.parts:env_generator"
    assert behavior["policy"]["network"]["type"] == "tests.online.parts:policy_generator"
    assert behavior["reward_signals"]["extrinsic"]["gamma"] == 0.5
    assert behavior["algorithm"]["kl_coef"] == 0.2
    assert behavior["algorithm"]["learning_rate"] == {"start": 0.01, "end": 0.0} | {
        name: value for name, value in behavior["algorithm"]["learning_rate"].items() if name not in ("start", "end")
    }
    assert (run["placement"]["type"], run["env_workers"]["num_workers"]) == ("processes", 4)
    assert (run["checkpoint"]["every_updates"], run["checkpoint"]["keep_every_updates"]) == (1, 2)


def test_staleness_zero_is_blocks_of_lanes_that_step_together() -> None:
    settings = run_file(online_dict(0)).to_dict()
    # 4 fragments of 8 steps from 2 environments are 16 steps of each.
    assert settings["experiment"]["behaviors"]["default"]["rollout"]["num_steps"] == 16
    assert settings["run"]["placement"]["type"] == "local"


IMPOSSIBLE = {
    "batch_size": ({"rollout_config": {"worker_config": {"num_envs": 2, "batch_size": 3}}}, ("batch_size", "num_envs")),
    "accumulation": (
        {"train_config": {"batches_per_iteration": 10, "gradient_accumulation": 3}},
        ("gradient_accumulation", "batches_per_iteration"),
    ),
    "keep": ({"train_config": {"save_interval": 10, "keep_interval": 15}}, ("keep_interval", "save_interval")),
    "warmup": ({"train_config": {"vf_warmup": 9, "num_iterations": 9}}, ("vf_warmup", "num_iterations")),
    "chunks": (
        {"rollout_config": {"replay_buffer_config": {"max_chunks": 100}}},
        ("max_chunks", "batches_per_iteration"),
    ),
    "reuse": (
        {"rollout_config": {"replay_buffer_config": {"max_staleness": 0, "max_reuse": 2}}},
        ("max_staleness", "max_reuse"),
    ),
    "cloning": ({"train_config": {"bc_coef": 0.1}}, ("bc_coef", "trainer_name")),
    "demonstrations": (
        {"trainer_name": "PPOBCTrainer", "train_config": {"bc_coef": 0.1}},
        ("bc_coef", "mine_data"),
    ),
    "nothing to clone": ({"trainer_name": "PPOBCTrainer"}, ("PPOBCTrainer", "bc_coef")),
    "ranks": ({"train_config": {"num_workers": 2}}, ("num_rollout_workers", "num_workers")),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_combinations_name_both(name: str) -> None:
    given, names = IMPOSSIBLE[name]
    with pytest.raises(SettingsError) as refused:
        online_config(given)
    assert refused.value.code == "E0262"
    assert all(each in str(refused.value) for each in names)


def test_unknown_keys_are_refused_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"fragment_lenght.*fragment_length"):
        online_config({"rollout_config": {"fragment_lenght": 8}})


def test_gpus_that_are_not_there_and_objects_in_place_of_factories_have_one_sentence_each() -> None:
    wants = online_config({"train_config": {"num_gpus_per_worker": 1.0}})
    with pytest.raises(SettingsError, match=r"train_config.num_gpus_per_worker is 1, and this machine has no GPUs"):
        refuse_missing_gpus(wants, 0)
    refuse_missing_gpus(wants, 1)
    whole, half = (
        online_config(
            {
                "rollout_config": {"num_rollout_workers": 2},
                "train_config": {"num_workers": 2, "num_gpus_per_worker": share},
            }
        )
        for share in (1, 0.5)
    )
    with pytest.raises(SettingsError, match="is 1 for each of 2 workers, and this machine has 1 GPU; set it to 0 or"):
        refuse_missing_gpus(whole, 1)
    refuse_missing_gpus(whole, 2)
    refuse_missing_gpus(half, 1)
    with pytest.raises(SettingsError, match="policy_generator is a Small, expected a function"):
        Generators(policy_generator(), env_generator)  # type: ignore[arg-type]  # what is refused
    with pytest.raises(SettingsError, match=r"env_generator is a .*, expected a function"):
        Generators(policy_generator, env_generator())


def test_the_page_says_of_every_parameter_what_it_does() -> None:
    found = re.findall(r"^\| `([a-z_.]+)` \| ([^|]+) \| ([^|]+) \| [^|]+ \|$", PAGE.read_text(), re.MULTILINE)
    rows = {name: (here, on_ray) for name, here, on_ray in found}
    config = OnlineConfig()
    assert set(leaves(config)) <= set(rows), set(leaves(config)) - set(rows)
    for name in leaves(config):
        here, on_ray = rows[name]
        assert ("no effect" in here) == (name in WITHOUT_EFFECT), name
        assert ("no effect" in on_ray) == (name in WITHOUT_EFFECT_ON_RAY), name


@pytest.mark.parametrize(("address", "idle"), [(None, WITHOUT_EFFECT), ("local", WITHOUT_EFFECT_ON_RAY)])
def test_what_the_table_says_is_so(address: str | None, idle: dict[str, str]) -> None:
    """A key without effect leaves the run file as it is, and every other changes it, or is refused or the run's."""
    elsewhere = {
        "trainer_name", "logger_config.name", "train_config.resume", "train_config.resume_optimizer",
        "train_config.save_path", "train_config.use_amp", "train_config.inference_batch_size_per_gpu",
        "rollout_config.num_gpus_per_worker", "rollout_config.worker_config.video_fps",
        "train_config.mine_data",
        "rollout_config.replay_buffer_config.fragments_per_chunk",
    }  # fmt: skip
    base = online_config({**online_dict(2), "seed": 1})
    generators = Generators(policy_generator, env_generator)
    before = run_settings(base, generators, address=address)
    for path, value in leaves(base).items():
        if path in elsewhere:
            continue
        other: Any = (
            not value if isinstance(value, bool) else (value or 0) * 2 + 1 if not isinstance(value, str) else "x"
        )
        if path in ("train_config.discount", "train_config.gae_lambda", "train_config.coef_rho_decay"):
            other = 0.25
        if path in ("logger_config.project", "rollout_config.worker_config.video_output_dir"):
            other = "x"
        changed = _with(base, path.split("."), other)
        is_same = run_settings(changed, generators, address=address) == before
        assert is_same == (path in idle), path


def _with(config: Any, path: list[str], value: Any) -> Any:
    below = value if len(path) == 1 else _with(getattr(config, path[0]), path[1:], value)
    return config.model_copy(update={path[0]: below})


def test_keys_without_effect_are_found_where_they_were_set() -> None:
    given = online_dict(1, num_readers=2)
    assert idle_keys(given) == ["train_config.num_readers"]


def test_constructors_refuse_what_they_do_not_know() -> None:
    class Own(BaseTrainer):
        def setup_model_and_optimizer(self) -> Any: ...
        def train(self) -> None: ...

    with pytest.raises(SettingsError, match="Own got the unknown parameter discuont; did you mean discount"):
        Own(rollout_manager=None, policy_generator=policy_generator, env_generator=env_generator, discuont=1)  # type: ignore[arg-type]


def test_what_is_no_configuration_and_no_manager_is_refused_in_a_sentence() -> None:
    calls = (partial(start_trainer, policy_generator), partial(start_rolloutmanager, policy_generator))
    for start in calls:
        with pytest.raises(SettingsError, match="the configuration is a NoneType; expected the dict online_dict"):
            start(env_generator, None)
        with pytest.raises(SettingsError, match=r"train_config: found null, expected a mapping"):
            start(env_generator, {"train_config": None})
    with pytest.raises(SettingsError, match="rollout_manager is a NoneType; pass the result of start_rolloutmanager"):
        OwnTrainer(rollout_manager=None, policy_generator=policy_generator, env_generator=env_generator)
    with pytest.raises(SettingsError, match=r"rollout_config.num_gpus_per_worker is 1, and rollout workers act on the"):
        start_rolloutmanager(policy_generator, env_generator, {"rollout_config": {"num_gpus_per_worker": 1}})


@pytest.mark.parametrize("direction", ["to_reference", "from_reference"])
def test_both_directions_of_the_divergence_can_be_chosen(direction: str) -> None:
    settings = run_file(online_dict(0, kl_direction=direction)).to_dict()
    assert settings["experiment"]["behaviors"]["default"]["algorithm"]["kl_direction"] == direction


MODULE = """
from tests.online.parts import OwnTrainer, env_generator, online_dict, policy_generator
online_dict = online_dict(0, num_readers=3)
"""


def test_files_that_cannot_be_imported_by_their_name_are_refused(tmp_path: Path) -> None:
    for name, said in (("my.config.py", "has a dot in its name"), ("json.py", "has the name of the module json in")):
        (tmp_path / name).write_text(MODULE)
        with pytest.raises(SettingsError, match=said) as refused:
            file_settings(tmp_path / name)
        assert refused.value.code == "E0261"
    with pytest.raises(SettingsError, match=r"nofile.py: cannot read: No such file"):
        file_settings(tmp_path / "nofile.py")


def test_a_file_names_keys_without_effect_and_its_folder(tmp_path: Path) -> None:
    (tmp_path / "a_configuration.py").write_text(MODULE)
    settings, [note] = file_settings(tmp_path / "a_configuration.py")
    assert "train_config.num_readers (fragments are read from memory)" in note
    assert RunFile.from_mapping(settings, notes=[note]).notes[0] == note
    assert settings["run"]["code_dir"] == str(tmp_path)


def test_the_folder_of_a_strangers_run_is_not_searched(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "their_parts.py").write_text("def loss(): raise AssertionError('it was called')\n")
    text = RunFile.from_names("ppo", "CartPole-v1").replace("run.code_dir", str(folder)).to_yaml()
    sys.path.remove(str(folder))
    path = tmp_path / "config.yaml"
    path.write_text(text)
    assert RunFile.load(path, trusted=False).run.code_dir == str(folder)
    assert str(folder) not in sys.path
    RunFile.load(path)
    assert sys.path[-1] == str(folder)
    sys.path.remove(str(folder))


def test_on_ray_rollout_workers_are_actors_of_the_cluster_and_learners_may_have_gpus() -> None:
    config = online_config(
        {"rollout_config": {"num_cpus_per_worker": 0.5}, "train_config": {"num_gpus_per_worker": 0.5}}
    )
    settings = run_settings(config, Generators(policy_generator, env_generator), address="auto")
    assert settings["run"]["placement"] == {
        "type": "ray", "address": "auto", "num_cpus_per_actor": 0.5, "num_gpus_per_rank": 0.5, "num_ranks": 1,
    }  # fmt: skip
    assert settings["run"]["device"] == "cuda"
    RunFile.from_mapping(settings)


def test_one_learner_on_ray_has_the_gpu_of_the_driver_and_several_those_of_the_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    generators, reached = Generators(policy_generator, env_generator), []

    def train_on_ray(run: RayRun) -> RayEnd:
        reached.append(run.run_file)
        return RayEnd(RunSummary("finished", 0.0, 0), None, 0)

    monkeypatch.setattr(runner, "train_on_ray", train_on_ray)
    wants = {"num_gpus_per_worker": 1.0, "save_path": str(tmp_path), "num_workers": 2}
    config = online_config({"rollout_config": {"num_rollout_workers": 2}, "train_config": wants})
    train_online(config, generators, place=RayPlace("auto"))
    assert dict(reached[0].run.placement)["num_gpus_per_rank"] == 1.0
    if not torch.cuda.is_available():
        with pytest.raises(SettingsError, match=r"num_gpus_per_worker is 1, and this machine has no GPUs; set it to 0"):
            train_online(
                online_config({"train_config": {"num_gpus_per_worker": 1}}), generators, place=RayPlace("auto")
            )


def test_calls_of_objects_are_calls_and_no_object_is_an_actor() -> None:
    assert ask([1, 2], "index", 2) == 1
    assert not is_actor(object())
