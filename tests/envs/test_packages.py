"""Ids of packages: how they are spelt, found, made in workers, and what is said where a package is missing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from quintain.cli import app
from quintain.core import trust
from quintain.core.extras import install_command, pip_command
from quintain.core.rng import Rng
from quintain.envs.gym import packages
from quintain.envs.gym.factories import factory_of
from quintain.envs.gym.make import gym_env, preset_advice
from quintain.envs.hosts.hosting import Hosting
from quintain.envs.settings import GymSettings
from quintain.errors import CheckpointError, SettingsError
from quintain.settings.run import EnvWorkerSettings

MODULE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

gymnasium.register("walks/Stroll-v2", entry_point=CartPoleEnv, max_episode_steps=6)

class Walk(CartPoleEnv): ...
"""


@pytest.fixture
def own_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module in the current folder that registers an id; it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "strolls.py").write_text(MODULE)
    yield tmp_path
    sys.modules.pop("strolls", None)
    gymnasium.registry.pop("walks/Stroll-v2", None)


@pytest.fixture
def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gymnasium's own ids, and no other package installed."""
    own = {name: spec for name, spec in gymnasium.registry.items() if str(spec.entry_point).startswith("gymnasium")}
    monkeypatch.setattr(gymnasium, "registry", own)

    def missing(name: str) -> Any:
        raise packages.PackageNotFoundError(name)

    monkeypatch.setattr(packages, "distribution", missing)


def test_an_id_after_a_module_is_made_and_a_name_is_an_attribute(own_package: Path) -> None:
    assert factory_of(GymSettings(id="strolls:walks/Stroll-v2"))().spec.max_episode_steps == 6
    assert type(factory_of(GymSettings(id="strolls:Walk"))()).__name__ == "Walk"
    with pytest.raises(
        SettingsError, match=r'importing strolls did not register "walks/Strol-v2"; did you mean "walks'
    ):
        factory_of(GymSettings(id="strolls:walks/Strol-v2"))
    with pytest.raises(SettingsError, match='strolls has no "Walks"; did you mean "Walk"') as refused:
        factory_of(GymSettings(id="strolls:Walks"))()
    assert refused.value.code == "E0208"


def test_a_foreign_run_imports_no_package_that_was_not_allowed(own_package: Path) -> None:
    with (
        trust.importing_only(set()),
        pytest.raises(CheckpointError, match="--allow strolls:walks/Stroll-v2"),
    ):
        factory_of(GymSettings(id="strolls:walks/Stroll-v2"))
    assert "strolls" not in sys.modules
    with trust.importing_only({"strolls:walks/Stroll-v2"}):
        factory_of(GymSettings(id="strolls:walks/Stroll-v2"))


def test_nor_a_well_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gymnasium, "registry", {})
    with trust.importing_only(set()), pytest.raises(CheckpointError, match=r"--allow minigrid$"):
        packages.registered_id("MiniGrid-Empty-5x5-v0")


@pytest.mark.parametrize(
    ("env_id", "command"),
    [
        ("ALE/Pong-v5", install_command("atari")),
        ("PongNoFrameskip-v4", install_command("atari")),
        ("BabyAI-GoToObj-v0", install_command("minigrid")),
        ("PandaReach-v3", pip_command("panda-gym")),
        ("highway-fast-v0", pip_command("highway-env")),
        ("dm_control/walker-walk-v0", pip_command("shimmy[dm-control]")),
        ("VizdoomBasic-v0", pip_command("vizdoom")),
        ("VizdoomCorridor-MultiBinary-v1", pip_command("vizdoom")),
        ("AntBulletEnv-v0", pip_command("pybullet-envs-gymnasium")),
        ("NetHackScore-v0", pip_command("nle")),
        ("Pong-v5", install_command("atari")),
        ("panda_gym:PandaReach-v3", pip_command("panda-gym")),
        ("vizdoom.gymnasium_wrapper:VizdoomBasic-v0", pip_command("vizdoom")),
    ],
)
@pytest.mark.usefixtures("without_packages")
def test_the_package_of_a_well_known_id_is_named(env_id: str, command: str) -> None:
    with pytest.raises(SettingsError, match=r"is not installed\. Install it with: ") as refused:
        packages.registered_id(env_id)
    assert refused.value.message.endswith(command)
    assert refused.value.code == "E0242"


@pytest.mark.parametrize(
    ("env_id", "package"),
    [
        ("SuperMarioBros-1-1-v0", "gym-super-mario-bros"),
        ("MineRLNavigate-v0", "minerl"),
        ("procgen-coinrun-v0", "procgen"),
    ],
)
@pytest.mark.usefixtures("without_packages")
def test_a_package_of_the_old_gym_is_named_with_the_way_to_wrap_it(env_id: str, package: str) -> None:
    with pytest.raises(SettingsError) as refused:
        packages.registered_id(env_id)
    assert f"{pip_command(package)}; it speaks the interface of the old Gym" in refused.value.message


def test_a_game_without_its_prefix_gets_the_whole_id() -> None:
    pytest.importorskip("ale_py")
    with pytest.raises(SettingsError, match='did you mean "ALE/Pong-v5"'):
        packages.registered_id("Pong-v5")


def test_a_game_of_raw_screens_is_told_of_the_preset() -> None:
    pytest.importorskip("ale_py")
    assert "preset=atari gives 84x84 grey pixels" in preset_advice(GymSettings(id="ALE/Pong-v5"))[0]
    assert preset_advice(GymSettings(id="ALE/Pong-v5", preset="atari")) == ()
    assert preset_advice(GymSettings(id="ALE/Pong-v5", kwargs={"obs_type": "ram"})) == ()
    assert preset_advice(GymSettings(id="CartPole-v1")) == ()


@pytest.mark.parametrize(
    ("env_id", "module", "extra"), [("LunarLander-v3", "Box2D", "box2d"), ("HalfCheetah-v5", "mujoco", "mujoco")]
)
def test_so_is_that_of_gymnasiums_own(
    env_id: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith(f"gymnasium.envs.{extra}")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    assert app.main(["train", "ppo", env_id, "total_timesteps=100", "-q"]) == 2
    assert capsys.readouterr().err.strip().endswith(f"Install them with: {install_command(extra)}")


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "ale_py:ALE/Pong-v5", "minigrid:MiniGrid-Empty-5x5-v0"])
def test_ids_of_packages_are_made_in_this_process_and_in_workers(
    env_id: str, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = GymSettings(id=env_id, num_lanes=2)
    here = gym_env(settings, 2, Rng(3))
    there = gym_env(settings, 2, Rng(3), hosting=Hosting.from_settings(EnvWorkerSettings(num_workers=2)))
    try:
        assert here.spec == there.spec
        here.reset(), there.reset()
        assert all((rows == there.obs[name]).all() for name, rows in here.obs.items())
    finally:
        here.close()
        there.close()
    assert capfd.readouterr().err == ""
