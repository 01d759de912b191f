"""The tasks in the meadow: their optimal returns, what can be known when, and no noise in rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quintain import Trainer
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.fragments import FragmentBlock
from quintain.data.rollout import Rollout
from quintain.envs.gym.make import gym_env
from quintain.envs.hosts.hosting import Hosting
from quintain.envs.hosts.ready_lanes import ReadyLanes
from quintain.envs.minecraft.adapter import MinecraftEnv
from quintain.envs.minecraft.tasks import YAW_TURNS, hunt, look, recall
from quintain.envs.settings import GymSettings
from quintain.errors import SettingsError
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.settings import ActorCriticSettings, MemorySettings
from quintain.rollouts.fragment_collector import FragmentCollector
from quintain.rollouts.sync_collector import SyncCollector
from quintain.settings.run import EnvWorkerSettings
from tests.envs.minecraft.test_adapter import is_noise
from tests.scripted import never


def turn_towards(env: MinecraftEnv, entity: Any) -> int:
    """Returns the turn that leaves the smallest angle to an entity."""
    engine = env.sim.engine
    wanted = np.degrees(np.arctan2(entity.x - engine.x, entity.z - engine.z))
    left = (wanted - engine.yaw - np.array(YAW_TURNS) + 180) % 360 - 180
    return int(np.abs(left).argmin())


def play(env: MinecraftEnv, seed: int, choose: Any) -> tuple[float, int, bool]:
    """Plays one episode; returns the sum of rewards, its length and whether it terminated."""
    env.reset(seed=seed)
    total, length = 0.0, 0
    while True:
        buttons, camera = choose(env)
        _, reward, terminated, truncated, _ = env.step({"buttons": np.array([buttons]), "camera": np.array([camera])})
        total, length = total + reward, length + 1
        if terminated or truncated:
            return total, length, terminated


def test_looking_returns_one_by_the_shortest_way() -> None:
    env = look()
    for seed in range(20):
        total, length, terminated = play(env, seed, lambda env: (0, turn_towards(env, env.sim.engine.entities[0])))
        assert terminated
        assert total == pytest.approx(1.0)
        # At most 32 degrees, 10 in a step.
        assert length <= 5
    # Turning away costs as much as it takes to come back.
    assert play(env, 0, lambda env: (0, 4 - turn_towards(env, env.sim.engine.entities[0])))[0] < 0.0


def test_hunting_every_sheep_returns_thirty() -> None:
    env = hunt(size=16)

    def chase(env: MinecraftEnv) -> tuple[int, int]:
        engine = env.sim.engine
        sheep = [each for each in engine.entities if each.kind == "sheep"]
        if not sheep:
            return 0, 7
        nearest = min(sheep, key=engine.distance)
        # Three rows of pitch turns by -10, 0 and 10 degrees; 20 degrees down is a sheep's body at a distance of 3.
        pitch = 2 if engine.pitch < 15 else 1
        buttons = 2 if engine.distance(nearest) < 3.0 and engine.is_aimed_at(nearest) else 1
        if engine.distance(nearest) < 2.0:
            buttons = 2
        return buttons, pitch * 5 + turn_towards(env, nearest)

    totals = [play(env, seed, chase)[0] for seed in range(3)]
    assert totals == [30.0] * 3


@pytest.mark.parametrize("has_random_sides", [False, True])
def test_recall_cannot_be_known_after_the_first_frame(has_random_sides: bool) -> None:
    env = recall(has_random_sides=has_random_sides)
    shown: dict[tuple[str, bool], list[bytes]] = {}
    for seed in range(16):
        obs, _ = env.reset(seed=seed)
        [task] = [each for each in env.sim.callbacks if hasattr(each, "cue")]
        frames = [obs["image"].tobytes()]
        for step in range(3):
            # Whatever is done before the pillars rise has no effect.
            obs, *_ = env.step({"buttons": np.array([step % 3]), "camera": np.array([(seed + step) % 5])})
            frames.append(obs["image"].tobytes())
        shown[task.cue, task.is_red_right] = frames
    sides = {side for _, side in shown}
    assert len(sides) == 1 + has_random_sides
    for side in sides:
        red, blue = shown["red", side], shown["blue", side]
        assert red[0] != blue[0]
        assert red[1:] == blue[1:]
        assert red[3] != red[2]

    def look_at_red(env: MinecraftEnv) -> tuple[int, int]:
        pillars = env.sim.engine.entities
        return 0, turn_towards(env, pillars[0]) if pillars else 2

    for cue, right in (("red", 1.0), ("blue", 0.0)):
        by_cue = [play(env, seed, look_at_red) for seed in range(16) if _cue(env, seed) == cue]
        # The first pillar is the red one.
        assert {(total, terminated) for total, _, terminated in by_cue} == {(right, True)}


def _cue(env: MinecraftEnv, seed: int) -> str:
    env.reset(seed=seed)
    return next(each.cue for each in env.sim.callbacks if hasattr(each, "cue"))


def make_lanes(faults: dict[str, Any], num_lanes: int = 3) -> Any:
    settings = GymSettings(id="Minecraft/Look-v0", kwargs={"faults": faults, "size": 12, "max_steps": 9})
    return gym_env(settings, num_lanes, Rng(1), hosting=Hosting.from_settings(EnvWorkerSettings()))


@pytest.mark.parametrize("faults", [{"error_at": 7}, {"raise_at": 7}], ids=["error", "raise"])
@pytest.mark.parametrize("kind", ["block", "fragments"])
def test_a_broken_lane_is_truncated_at_its_last_good_observation(kind: str, faults: dict[str, Any]) -> None:
    lanes = make_lanes(faults)
    policy = ActorCritic(ActorCriticSettings(image_features=8, hidden_sizes=(8,)), lanes.spec, Rng(0))
    num_steps = 16
    if kind == "block":
        block = Rollout(lanes.spec, policy.declare_fields(), num_lanes=3, num_steps=num_steps)
        assert SyncCollector(lanes, policy, Rng(0)).collect(block, 0, never)
        valid = block.array(f.VALID)[:-1]
    else:
        env = ReadyLanes(lanes)
        fields = policy.declare_fields()
        block = FragmentBlock(env.spec, fields, num_lanes=6, num_steps=num_steps)
        block.begin(1, 0)
        collector = FragmentCollector(env, policy, Rng(0), fields, num_steps=num_steps, deadline_seconds=0.0)
        assert collector.collect(block, 0, never)
        valid = block.array(f.VALID)[:-1]
    images = block.array(f"{f.OBS}.image")
    finals = block.final.array(f"{f.OBS}.image")[: block.final.count]
    # Each simulator breaks in its seventh step, again and again: several times in each lane.
    assert lanes.faults.restarts >= 6
    assert not any(is_noise(image) for image in images.reshape(-1, *images.shape[2:]))
    assert not any(is_noise(image) for image in finals)
    reward, done = block.array(f.REWARD)[:-1], block.array(f.DONE)[:-1]
    assert np.isfinite(reward).all()
    if kind == "block":
        # The broken step counts for nothing, and terminates nothing.
        assert (~valid).sum() == lanes.faults.aborted
        assert not reward[~valid].any()
        assert not done[~valid].any()
    else:
        # A step that broke is in no fragment; the one before it is truncated.
        assert valid.all()
    # The last reward of an episode that ended is in the block with it: the rest of the angle.
    ended = block.array(f.TERMINATED)[:-1]
    assert (reward[ended] > 0).all()


def test_ids_are_known_and_options_are_checked(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="expected small or agent"):
        recall(actions="all")
    with pytest.raises(SettingsError, match="unknown fault 'crash_at'"):
        look(faults={"crash_at": 3})
    with pytest.raises(SettingsError, match='did you mean "Minecraft/Look-v0"'):
        gym_env(GymSettings(id="Minecraft/Lok-v0"), 1, Rng(0))


@pytest.mark.parametrize("memory", [None, MemorySettings(cell="gru", size=8)], ids=["plain", "gru"])
def test_ppo_trains_on_agent_actions_of_8641_buttons(memory: Any) -> None:
    policy = {"type": "actor_critic", "image_features": 8, "hidden_sizes": [8]}
    if memory is not None:
        policy["memory"] = memory.model_dump(exclude_none=True)
    trainer = Trainer(
        "ppo", "Minecraft/Recall-v0", num_lanes=2, kwargs={"actions": "agent", "size": 12}, policy=policy,
        num_steps=8, batch_size=16, num_epochs=1, writers=[], events=[],
    )  # fmt: skip
    trainer.train(32)
    assert trainer.progress.env_steps == 32
    trainer.close()
