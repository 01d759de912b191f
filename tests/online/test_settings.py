"""`online_dict`: defaults for every key, refusals with both names, and what becomes of it in a run file."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from quintain.errors import SettingsError
from quintain.online import (
    BaseTrainer,
    OnlineConfig,
    file_settings,
    online_config,
    online_env,
    runner,
    start_rolloutmanager,
    start_trainer,
)
from quintain.online.config import idle_keys, refuse_missing_gpus
from quintain.online.ray_actors import ask, connect, is_actor
from quintain.online.runner import RayPlace, train_online
from quintain.online.settings import WITHOUT_EFFECT, WITHOUT_EFFECT_ON_RAY
from quintain.online.start import host_trainer
from quintain.online.translate import Generators, run_settings
from quintain.runs.ranks.on_ray import RayEnd, RayRun
from quintain.services.reporting.crash_reports import as_quintain_error
from quintain.services.reporting.writers import RunSummary
from quintain.settings.base import Settings
from quintain.settings.tree import RunFile
from tests.online.environments import env_generator
from tests.online.parts import OwnTrainer, online_dict, policy_generator

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
    assert settings["experiment"]["env"]["kwargs"]["generator"] == "tests.online.environments:env_generator"
    assert behavior["policy"]["network"]["type"] == "tests.online.parts:policy_generator"
    assert behavior["reward_signals"]["extrinsic"]["gamma"] == 0.5
    assert behavior["algorithm"]["kl_coef"] == 0.2
    assert behavior["algorithm"]["learning_rate"] == {"start": 0.01, "end": 0.0} | {
        name: value for name, value in behavior["algorithm"]["learning_rate"].items() if name not in ("start", "end")
    }
    assert (run["placement"]["type"], run["env_workers"]["num_workers"]) == ("processes", 4)
    assert (run["checkpoint"]["every_updates"], run["checkpoint"]["keep_every_updates"]) == (1, 2)


EVERYTHING = {
    "trainer_name": "PPOBCTrainer",
    "seed": 9,
    "rollout_config": {
        "num_rollout_workers": 6,
        "fragment_length": 12,
        "worker_config": {"num_envs": 4, "restart_interval": 60, "video_fps": 30},
        "replay_buffer_config": {"max_chunks": 90, "max_reuse": 3, "max_staleness": 5},
    },
    "train_config": {
        "num_workers": 2, "num_iterations": 70, "save_interval": 5, "keep_interval": 20, "record_video_interval": 7,
        "discount": 0.9, "gae_lambda": 0.8, "context_length": 6, "use_normalized_vf": False, "zero_initial_vf": False,
        "batch_size_per_gpu": 3, "batches_per_iteration": 10, "gradient_accumulation": 5, "epochs_per_iteration": 4,
        "learning_rate": 3e-3, "weight_decay": 0.01, "adam_eps": 1e-6, "max_grad_norm": 0.7, "ppo_clip": 0.3,
        "clip_vloss": True, "ppo_policy_coef": 0.6, "ppo_vf_coef": 0.4, "entropy_bonus_coef": 0.02,
        "kl_divergence_coef_rho": 0.25, "coef_rho_decay": 0.99, "kl_direction": "from_reference",
        "enable_ref_update": True, "vf_warmup": 2, "log_ratio_range": 40, "normalize_advantage_full_batch": False,
        "bc_coef": 0.2, "mine_data": "shown",
    },
    "logger_config": {"project": "meadow"},
}  # fmt: skip
ARRIVES = {
    "experiment.seed": 9,
    "experiment.budget.updates": 70,
    # 6 workers of 4 environments, for 2 learners.
    "experiment.env.num_lanes": 24,
    "experiment.env.num_collectors": 3,
    "experiment.env.kwargs.restart_interval": 60.0,
    "experiment.env.kwargs.frames_per_second": 30.0,
    "run.env_workers.num_workers": 24,
    "run.placement.type": "processes",
    "run.placement.num_ranks": 2,
    "run.device": "cpu",
    "run.checkpoint.every_updates": 5,
    "run.checkpoint.keep_every_updates": 20,
    "run.checkpoint.every_seconds": None,
}
ARRIVES_IN_BEHAVIOR = {
    "policy.context_length": 6,
    "reward_signals.extrinsic.gamma": 0.9,
    "rollout.type": "fragments",
    "rollout.num_steps": 12,
    # 2 learners with 10 micro-batches of 3 fragments.
    "rollout.num_fragments": 60,
    "rollout.max_staleness": 5,
    "rollout.max_reuse": 3,
    "rollout.capacity": 90,
    "algorithm.type": "online_ppo",
    "algorithm.learning_rate": 3e-3,
    "algorithm.weight_decay": 0.01,
    "algorithm.adam_eps": 1e-6,
    # 2 learners with 5 micro-batches of 3 fragments of 12 steps.
    "algorithm.batch_size": 360,
    "algorithm.micro_batch_size": 36,
    "algorithm.num_epochs": 4,
    "algorithm.max_grad_norm": 0.7,
    "algorithm.gae_lambda": 0.8,
    "algorithm.clip_coef": 0.3,
    "algorithm.clip_value": 0.3,
    "algorithm.policy_coef": 0.6,
    "algorithm.value_coef": 0.4,
    "algorithm.entropy_coef": 0.02,
    "algorithm.kl_coef": 0.25,
    "algorithm.kl_decay": 0.99,
    "algorithm.kl_direction": "from_reference",
    "algorithm.update_reference": True,
    "algorithm.value_warmup": 2,
    "algorithm.normalize_values": False,
    "algorithm.zero_initial_values": False,
    "algorithm.log_ratio_range": 40.0,
    "algorithm.normalize_advantage": False,
    "auxiliary_losses.behavior_cloning.path": "shown",
    "auxiliary_losses.behavior_cloning.coef": 0.2,
    "auxiliary_losses.behavior_cloning.batch_size": 36,
    "events.1.type": "record_video",
    "events.1.every_updates": 7,
    "events.1.frames_per_second": 30.0,
}


def test_every_key_with_an_effect_arrives_with_its_own_value() -> None:
    """Against values worked out by hand, so that two that are exchanged are found."""
    settings = run_file(EVERYTHING).to_dict()
    assert [each["type"] for each in settings["run"]["writers"]] == ["console", "wandb"]
    assert settings["run"]["writers"][1]["project"] == "meadow"
    below = "experiment.behaviors.default."
    wanted = {**ARRIVES, **{below + path: value for path, value in ARRIVES_IN_BEHAVIOR.items()}}
    found = {path: _at(settings, path) for path in wanted}
    assert found == wanted


def _at(found: Any, path: str) -> Any:
    for step in path.split("."):
        found = found[int(step)] if step.isdigit() else found[step]
    return found


@pytest.mark.parametrize("interval", [0, 5])
def test_no_videos_are_made_by_an_interval_of_0_or_beyond_the_last_iteration(interval: int) -> None:
    settings = run_file(online_dict(0, num_iterations=4, record_video_interval=interval)).to_dict()
    assert settings["experiment"]["behaviors"]["default"]["events"] == [{"type": "none"}]


@pytest.mark.parametrize("interval", [0, None])
def test_environments_are_never_made_again_by_a_restart_interval_of_0(interval: int | None) -> None:
    settings = run_file({"rollout_config": {"worker_config": {"restart_interval": interval}}}).to_dict()
    assert settings["experiment"]["env"]["kwargs"]["restart_interval"] is None


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
    "reference": ({"train_config": {"enable_ref_update": True}}, ("enable_ref_update", "kl_divergence_coef_rho")),
    "precision": ({"train_config": {"use_amp": True}}, ("use_amp", "mixed precision")),
    "fragments in a chunk": (
        {"rollout_config": {"replay_buffer_config": {"fragments_per_chunk": 2}}},
        ("fragments_per_chunk", "fragment_length to 512"),
    ),
    "synchronous": (
        {
            "rollout_config": {
                "worker_config": {"num_envs": 3},
                "replay_buffer_config": {"max_staleness": 0, "max_reuse": 1},
            }
        },
        ("batches_per_iteration", "num_envs"),
    ),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_combinations_name_both(name: str) -> None:
    given, names = IMPOSSIBLE[name]
    with pytest.raises(SettingsError) as refused:
        online_config(given)
    assert refused.value.code == "E0262"
    assert all(each in str(refused.value) for each in names)


def test_a_reference_may_be_updated_where_there_is_one() -> None:
    for more in ({"kl_divergence_coef_rho": 0.1}, {"vf_warmup": 1}):
        assert online_config({"train_config": {"enable_ref_update": True, **more}}).train_config.enable_ref_update


class Node:
    """Has `items` and is no dict, as nodes of OmegaConf are."""

    def __init__(self, **entries: Any) -> None:
        self.entries = entries

    def items(self) -> Any:
        return self.entries.items()


def test_nodes_of_other_libraries_are_read_as_dicts() -> None:
    given = Node(trainer_name="PPOTrainer", train_config=Node(discount=0.5, num_readers=2))
    assert online_config(given).train_config.discount == 0.5
    assert idle_keys(given) == ["train_config.num_readers"]


@pytest.mark.parametrize("name", ["SACTrainer", "collections:OrderedDict"])
def test_an_unknown_trainer_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(SettingsError, match=f"trainer_name is '{name}'; expected PPOTrainer, PPOBCTrainer") as refused:
        start_trainer(policy_generator, env_generator, {"trainer_name": name})
    assert refused.value.code == "E0261"


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


PARAMETERS = (
    "rollout_manager", "policy_generator", "env_generator", "num_workers", "num_readers", "num_cpus_per_reader",
    "num_gpus_per_worker", "prefetch_batches", "discount", "gae_lambda", "context_length", "use_normalized_vf",
    "inference_batch_size_per_gpu", "resume", "resume_optimizer",
)  # fmt: skip
"""The parameters of BaseTrainer that MineStudio documents, in its order."""
PATHS = {
    "models": ("MinePolicy",),
    "models.base_policy": ("MinePolicy",),
    "online.rollout": ("RolloutManager", "get_rollout_manager", "start_rolloutmanager"),
    "online.rollout.rollout_manager": ("RolloutManager",),
    "online.rollout.start_manager": ("start_rolloutmanager",),
    "online.trainer": ("BaseTrainer", "PPOBCTrainer", "PPOTrainer"),
    "online.trainer.basetrainer": ("BaseTrainer",),
    "online.trainer.ppobctrainer": ("PPOBCTrainer",),
    "online.trainer.ppotrainer": ("PPOTrainer",),
    "online.trainer.start_trainer": ("start_trainer",),
    "online.utils.rollout": ("get_rollout_manager",),
    "online.utils.rollout.datatypes": ("FragmentDataDict", "FragmentIndex", "SampleFragment"),
    "online.utils.train": ("FragmentDataDict", "GAEWorker", "data_iter"),
    "online.utils.train.data": ("FragmentDataDict", "data_iter"),
    "online.utils.train.gae": ("GAEWorker",),
}


def test_constructors_take_every_parameter_by_name_and_have_it_as_an_attribute() -> None:
    takes = [each for each in inspect.signature(BaseTrainer).parameters.values() if each.kind is not each.VAR_KEYWORD]
    assert tuple(each.name for each in takes) == PARAMETERS
    assert {each.kind for each in takes} == {inspect.Parameter.KEYWORD_ONLY}
    given = {
        "rollout_manager": start_rolloutmanager(policy_generator, env_generator, online_dict(0)),
        "policy_generator": policy_generator, "env_generator": env_generator, "num_workers": 3, "num_readers": 5,
        "num_cpus_per_reader": 0.2, "num_gpus_per_worker": 0.0, "prefetch_batches": 6, "discount": 0.7,
        "gae_lambda": 0.6, "context_length": 9, "use_normalized_vf": False, "inference_batch_size_per_gpu": 8,
        "resume": "there", "resume_optimizer": False,
    }  # fmt: skip
    trainer = OwnTrainer(**given, use_amp=False, num_iterations=11)
    assert {name: getattr(trainer, name) for name in given} == given
    assert (trainer.gae_actor.discount, trainer.gae_actor.gae_lambda) == (0.7, 0.6)
    # Some are MineStudio's own keywords; others are known once there is a run.
    assert (trainer.config.num_iterations, trainer.use_amp) == (11, False)
    for name in ("num_updates", "model_version"):
        with pytest.raises(SettingsError, match=r"OwnTrainer has no run yet; call fit\(\)"):
            getattr(trainer, name)


@pytest.mark.parametrize("path", PATHS)
def test_names_at_their_own_paths(path: str) -> None:
    ours = importlib.import_module("quintain.policies" if path.startswith("models") else "quintain.online")
    theirs = importlib.import_module(f"quintain.compat.minestudio.{path}")
    assert {name: getattr(theirs, name) for name in PATHS[path]} == {name: getattr(ours, name) for name in PATHS[path]}


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
from tests.online.environments import env_generator
from tests.online.parts import OwnTrainer, online_dict, policy_generator
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
    (tmp_path / "half_a_configuration.py").write_text("online_dict = {}\n")
    with pytest.raises(SettingsError, match="has no env_generator and no policy_generator; a configuration module has"):
        file_settings(tmp_path / "half_a_configuration.py")


def test_a_file_names_keys_without_effect_and_its_folder(tmp_path: Path) -> None:
    (tmp_path / "a_configuration.py").write_text(MODULE)
    settings, [note] = file_settings(tmp_path / "a_configuration.py")
    assert "train_config.num_readers (fragments are read from memory)" in note
    assert RunFile.from_mapping(settings, notes=[note]).notes[0] == note
    assert settings["run"]["code_dir"] == str(tmp_path)


FANCY = """
from tests.online.environments import env_generator
from tests.online.parts import OwnTrainer, online_dict, policy_generator

class Fancy(OwnTrainer):
    def __init__(self, bonus, **kwargs):
        super().__init__(**kwargs)
        self.bonus = bonus

online_dict = {**online_dict(0, bonus=3, discount=0.5), "trainer_name": "Fancy"}
"""


def test_a_trainer_of_the_configurations_module_is_named_in_the_run_file_with_its_own_parameters(
    tmp_path: Path,
) -> None:
    (tmp_path / "a_fancy_configuration.py").write_text(FANCY)
    settings, notes = file_settings(tmp_path / "a_fancy_configuration.py")
    trainer = settings["experiment"]["behaviors"]["default"]["trainer"]
    assert notes == []
    assert trainer["function"] == "quintain.online.start:host_trainer"
    assert trainer["kwargs"]["trainer"] == "a_fancy_configuration:Fancy"
    assert trainer["kwargs"]["own"] == {"bonus": 3}
    made: Any = []
    host = SimpleNamespace(progress=SimpleNamespace(budget=SimpleNamespace(updates=7)))
    cls = sys.modules["a_fancy_configuration"].Fancy
    cls._train_in = lambda self, host: made.append(self)
    host_trainer(host, **trainer["kwargs"])  # type: ignore[arg-type]  # what it asks of its host
    [fancy] = made
    # The budget of the run counts, which a resume may have raised.
    assert (fancy.bonus, fancy.discount, fancy.num_iterations) == (3, 0.5, 7)


def test_a_loop_of_ones_own_is_saved_at_each_broadcast_unless_its_interval_is_set() -> None:
    generators, own = Generators(policy_generator, env_generator), {"type": "hosted", "function": "mine:train"}

    def interval(trainer: Any, **train: int) -> int:
        config = online_config({"train_config": train}, is_hosted=trainer is not None)
        found: int = run_settings(config, generators, trainer)["run"]["checkpoint"]["every_updates"]
        return found

    assert (interval(own), interval(own, save_interval=10), interval(own, save_interval=4)) == (1, 10, 4)
    assert interval(None) == 10


LAMBDAS = """
from functools import partial
from tests.online import parts

env_generator = lambda: parts.env_generator()
policy_generator = partial(parts.Small, dropout=0.1)
online_dict = parts.online_dict(0)
"""


def test_generators_without_a_name_of_their_own_have_that_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "lambdas.py").write_text(LAMBDAS)
    settings, _ = file_settings(tmp_path / "lambdas.py")
    assert settings["experiment"]["env"]["kwargs"]["generator"] == "lambdas:env_generator"
    network = settings["experiment"]["behaviors"]["default"]["policy"]["network"]
    assert network["type"] == "lambdas:policy_generator"


def test_a_generator_that_makes_no_environment_is_told_so() -> None:
    with pytest.raises(SettingsError, match="env_generator made a NoneType without reset and step; expected an env"):
        online_env(lambda: None)  # type: ignore[arg-type, return-value]  # what is refused


def test_a_syntax_error_of_a_configuration_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "odd_configuration.py").write_text("x = 1\nx = = 2\n")
    with pytest.raises(SyntaxError) as raised:
        file_settings(tmp_path / "odd_configuration.py")
    shown = as_quintain_error(raised.value)
    assert shown.code == "E0112"
    assert "odd_configuration.py:2: SyntaxError: invalid syntax" in shown.message


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
    readers = {"num_readers": 3, "num_cpus_per_reader": 0.25, "prefetch_batches": 1}
    train = {"num_gpus_per_worker": 0.5, **readers}
    config = online_config({"rollout_config": {"num_cpus_per_worker": 0.5}, "train_config": train})
    settings = run_settings(config, Generators(policy_generator, env_generator), address="auto")
    assert not idle_keys({"train_config": readers}, on_ray=True)
    assert idle_keys({"train_config": readers}) == [f"train_config.{name}" for name in readers]
    assert settings["run"]["placement"] == {
        "type": "ray", "address": "auto", "num_cpus_per_actor": 0.5, "num_gpus_per_rank": 0.5, "num_ranks": 1,
        "num_readers": 3, "num_cpus_per_reader": 0.25, "prefetch_batches": 1,
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
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    config = online_config({"train_config": {"num_gpus_per_worker": 1}})
    with pytest.raises(SettingsError, match=r"num_gpus_per_worker is 1, and this machine has no GPUs; set it to 0"):
        train_online(config, generators, place=RayPlace("auto"))


def test_a_cluster_for_the_script_counts_cpus_for_actors_ranks_and_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    cluster = importlib.import_module("quintain.placements.ray.cluster").Cluster
    asked: list[float] = []

    def join(settings: Any, min_cpus: float = 0.0, *, has_ranks: bool = False) -> Any:
        assert has_ranks, "a trainer of the script may be run by Ray Train"
        asked.append(min_cpus)
        raise ConnectionError

    monkeypatch.setattr(cluster, "join", join)
    # 1 actor, and a rank with 4 readers of 0.1 CPU; then 2 actors of 0.5, and 2 ranks with 3 readers of 0.25.
    rollout = {"num_rollout_workers": 2, "num_cpus_per_worker": 0.5}
    train = {"num_workers": 2, "num_readers": 3, "num_cpus_per_reader": 0.25}
    for values, num_cpus in (({}, 2.4), ({"rollout_config": rollout, "train_config": train}, 4.5)):
        with pytest.raises(ConnectionError):
            connect(online_config(values), "local")
        assert asked.pop() == pytest.approx(num_cpus)


def test_calls_of_objects_are_calls_and_no_object_is_an_actor() -> None:
    assert ask([1, 2], "index", 2) == 1
    assert not is_actor(object())
