"""Wrappers, stacks of frames, presets, masks and metrics of ended episodes, by settings."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from quintain import evaluate
from quintain.cli import app
from quintain.core.rng import Rng
from quintain.data.spec import BehaviorSpec, box, discrete
from quintain.envs.base import EPISODE, Env
from quintain.envs.gym.atari import _area_weights
from quintain.envs.gym.make import env_from_object, gym_env
from quintain.envs.gym.vector import VectorEnv
from quintain.envs.hosts.hosting import Hosting
from quintain.envs.settings import GymSettings
from quintain.errors import EnvError, SettingsError
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.settings import ActorCriticSettings
from quintain.rollouts.step_metrics import StepMetrics
from quintain.runs.env_maker import env_maker
from quintain.settings.run import EnvWorkerSettings
from quintain.settings.tree import RunFile
from tests.envs.wrapped import Hop

HERE = "tests.envs.wrapped"
HOP = f"{HERE}:Hop"
ADD_THREE = {f"{HERE}:AddTo": {"number": 3}}
RIGHT = torch.ones(2, dtype=torch.int64)


def settings_of(env_id: str = HOP, **more: Any) -> GymSettings:
    return GymSettings.model_validate({"id": env_id, "num_lanes": 2, **more})


def workers() -> Hosting:
    return Hosting.from_settings(EnvWorkerSettings(num_workers=2))


class TestWrappers:
    def test_are_put_around_from_the_inside_out(self) -> None:
        env = gym_env(settings_of(wrappers=[ADD_THREE, f"{HERE}:Double"]), 2, Rng(0))
        np.testing.assert_array_equal(env.reset(), [[6.0], [6.0]])
        other = gym_env(settings_of(wrappers=[f"{HERE}:Double", {"type": f"{HERE}:AddTo"}]), 2, Rng(0))
        np.testing.assert_array_equal(other.reset(), [[1.0], [1.0]])

    def test_of_gymnasium_go_by_their_names_and_frames_are_stacked_last(self) -> None:
        settings = settings_of(wrappers=[{"TimeLimit": {"max_episode_steps": 2}}, ADD_THREE], frame_stack=3)
        env = gym_env(settings, 2, Rng(0))
        np.testing.assert_array_equal(env.reset()[0], [[3.0], [3.0], [3.0]])
        np.testing.assert_array_equal(env.step(RIGHT).obs[0], [[3.0], [3.0], [4.0]])
        result = env.step(RIGHT)
        assert result.truncated.all()
        np.testing.assert_array_equal(result.final_obs[0], [[3.0], [4.0], [5.0]])

    @pytest.mark.slow
    def test_are_the_same_in_workers_also_around_a_class(self) -> None:
        settings, hosting = settings_of(wrappers=[ADD_THREE], frame_stack=2, max_episode_steps=2), workers()
        makers = [gym_env, lambda s, n, rng, hosting=None: env_from_object(Hop, n, rng, settings=s, hosting=hosting)]
        for make in makers:
            here, there = make(settings, 2, Rng(0)), make(settings, 2, Rng(0), hosting=hosting)
            try:
                for _ in range(4):
                    np.testing.assert_array_equal(here.reset(), there.reset())
                    assert (here.step(RIGHT).obs == there.step(RIGHT).obs).all()
                    assert here.step(RIGHT).truncated.all()
                    assert there.step(RIGHT).truncated.all()
            finally:
                there.close()

    def test_of_training_are_not_in_evaluations(self) -> None:
        wrapper = {"type": f"{HERE}:HalfReward", "in_evaluation": False}
        run_file = RunFile.from_mapping(
            {
                "experiment": {
                    "env": {"type": "gym", "id": HOP, "wrappers": [wrapper, ADD_THREE]},
                    "behaviors": {"default": {"algorithm": "ppo"}},
                }
            }
        )
        for is_training, reward in ((True, 5.0), (False, 10.0)):
            env = env_maker(run_file, is_training=is_training)(2, Rng(0))
            assert env.reset()[0] == [3.0]
            assert env.step(RIGHT).reward.tolist() == [reward] * 2

    @pytest.mark.parametrize(
        ("wrapper", "said"),
        [
            ("RescaleActions", 'did you mean "RescaleAction"'),
            ("stable_baselines3.common.atari_wrappers.AtariWrapper", "Your own is module:Name"),
            ("NormalizeReward", "set normalize_reward=true"),
            ("gymnasium.wrappers.NormalizeObservation", "set normalize_obs=true"),
            (f"{HERE}:AddThree", 'has no "AddThree"'),
        ],
    )
    def test_that_are_not_there_or_not_exact_are_refused(self, wrapper: str, said: str) -> None:
        with pytest.raises(SettingsError, match=said):
            gym_env(settings_of(wrappers=[wrapper]), 2, Rng(0))

    def test_that_cannot_be_made_are_named(self) -> None:
        with pytest.raises(EnvError, match=f"cannot be put into the wrapper {HERE}:AddTo: TypeError"):
            gym_env(settings_of(wrappers=[{f"{HERE}:AddTo": {"numbers": 3}}]), 2, Rng(0))

    def test_do_not_go_with_vectors(self) -> None:
        words = ("vectorization=native", "wrappers=[FlattenObservation]")
        with pytest.raises(SettingsError, match="wrappers are around the environment of each lane"):
            RunFile.from_names("ppo", "CartPole-v1", *words)
        vector = gymnasium.vector.SyncVectorEnv([Hop] * 2)
        with pytest.raises(SettingsError, match="this is a vector environment"):
            env_from_object(vector, 2, Rng(0), settings=settings_of(frame_stack=2))

    def test_names_of_rl_zoo_and_one_entry_alone(self) -> None:
        run_file = RunFile.from_names("ppo", "CartPole-v1", "env_wrapper=ClipReward", "time_limit=7", "frame_stack=4")
        env: Any = run_file.experiment.env
        assert [each.type for each in env.layers] == ["ClipReward", "FrameStackObservation"]
        assert env.max_episode_steps == 7
        assert RunFile.from_mapping(run_file.to_dict()) == run_file


class TestEndedEpisodes:
    """Two lanes: one hops at every step and succeeds after 3, the other stays for 5 steps."""

    def said_of(self, env: Env) -> list[tuple[int, dict[str, list[float]]]]:
        env.reset()
        found = []
        for step in range(1, 9):
            info = env.step(torch.tensor([1, 0])).info or {}
            if EPISODE in info:
                found.append((step, {name: values.tolist() for name, values in info[EPISODE].items()}))
        return found

    def expected(self, *steps: tuple[int, int, int]) -> str:
        """Returns what is said at these steps: (step, lane, cell)."""
        nan = float("nan")
        rows = []
        for step, lane, cell in steps:
            values = {"is_success": float(cell == 3), "cell": float(cell)}
            rows.append((step, {name: [value if i == lane else nan for i in (0, 1)] for name, value in values.items()}))
        return str(rows)

    def test_in_lanes(self) -> None:
        env = gym_env(settings_of(info_metrics=["cell"]), 2, Rng(0))
        assert str(self.said_of(env)) == self.expected((3, 0, 3), (5, 1, 0), (6, 0, 3))

    @pytest.mark.slow
    def test_in_workers(self) -> None:
        env = gym_env(settings_of(info_metrics="cell"), 2, Rng(0), hosting=workers())
        try:
            assert str(self.said_of(env)) == self.expected((3, 0, 3), (5, 1, 0), (6, 0, 3))
        finally:
            env.close()

    @pytest.mark.parametrize("mode", gymnasium.vector.AutoresetMode)
    def test_in_vectors(self, mode: gymnasium.vector.AutoresetMode) -> None:
        vector = gymnasium.vector.SyncVectorEnv([Hop] * 2, autoreset_mode=mode)
        env = VectorEnv("hops", vector, Rng(0), metric_names=["cell"])
        # Where lanes are reset at the next step, the lane's second success is one step later.
        second = 7 if mode.name == "NEXT_STEP" else 6
        assert str(self.said_of(env)) == self.expected((3, 0, 3), (5, 1, 0), (second, 0, 3))

    def test_the_last_hundred_are_averaged_and_saved(self) -> None:
        metrics, other = StepMetrics(), StepMetrics()
        assert "windows" not in metrics.state_dict()
        for number in range(120):
            metrics.add({EPISODE: {"is_success": np.array([np.nan, number >= 70]), "cell": np.array([np.nan] * 2)}})
        # Episodes 20 to 119, of which 70 and later succeeded.
        assert metrics.drain() == {"rollout/success_rate": 0.5}
        other.load_state_dict(metrics.state_dict())
        assert other.drain() == {"rollout/success_rate": 0.5}

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "words",
        [
            (),
            ("run.placement.type=processes",),
            ("env_workers.num_workers=2", "env_workers.acts_in_halves=true"),
        ],
        ids=["local", "processes", "halves"],
    )
    def test_are_in_the_rows(
        self,
        words: tuple[str, ...],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(Path(__file__).parents[2])
        evaluation = 'events=[{"type": "evaluate", "num_episodes": 2, "every_env_steps": 64}]'
        small = ("num_lanes=2", "num_steps=32", "batch_size=32", "num_epochs=1", "total_timesteps=128", evaluation)
        command = ["train", "ppo", HOP, "info_metrics=[cell]", *small, *words, "--run-id", "hops", "-q"]
        assert app.main(command) == 0
        rows = [json.loads(line) for line in Path("runs/hops/metrics.jsonl").read_text().splitlines()]
        assert 0 < rows[-1]["rollout/success_rate"] < 1
        assert 0 < rows[-1]["info/cell"] < 3
        assert {"eval/success_rate", "eval/info/cell"} <= set(rows[-1])
        if not words:
            capsys.readouterr()
            assert app.main(["eval", "hops@latest", "-n", "4"]) == 0
            expected = evaluate("hops@latest", episodes=4).success_rate
            assert f" · success {expected:.0%} · 4 episodes" in capsys.readouterr().out


class TestMasks:
    def test_of_info_are_said_and_can_be_ignored(self) -> None:
        env = gym_env(settings_of(kwargs={"has_masks": True}), 2, Rng(0))
        [note] = env.notes
        assert 'action masks from info["action_mask"] are used; use_action_masks=false ignores them' in note
        assert env.spec.mask_size == 2
        ignoring = gym_env(settings_of(kwargs={"has_masks": True}, use_action_masks=False), 2, Rng(0))
        assert (ignoring.notes, ignoring.spec.mask_size, ignoring.reset().shape) == ((), 0, (2, 1))

    def test_of_vectors_too(self) -> None:
        make = partial(gymnasium.vector.SyncVectorEnv, [partial(Hop, has_masks=True)] * 2)
        assert VectorEnv("hops", make(), Rng(0)).notes
        assert not VectorEnv("hops", make(), Rng(0), use_masks=False).spec.mask_size

    def test_that_predict_misses_are_said_once(self) -> None:
        policy = ActorCritic(ActorCriticSettings(hidden_sizes=(4,)), BehaviorSpec(box(1), discrete(2), 2), Rng(0))
        policy.predict(np.zeros(1), action_mask=[True, False])
        said = "predict.. got no action mask, and this policy was trained with masks"
        with pytest.warns(UserWarning, match=said) as warned:
            policy.predict(np.zeros(1))
        assert warned[0].filename == __file__
        policy.predict(np.zeros(1))


def test_areas_are_averaged() -> None:
    # 5 pixels to 2: each is 2.5 pixels wide, and the third is shared.
    expected = [[0.4, 0.4, 0.2, 0.0, 0.0], [0.0, 0.0, 0.2, 0.4, 0.4]]
    np.testing.assert_allclose(_area_weights(5, 2), expected, rtol=1e-6)


@pytest.mark.slow
class TestAtari:
    """Breakout: five lives, FIRE begins each of them."""

    SETTINGS = settings_of("ALE/Breakout-v5", preset="atari")

    def test_training_ends_at_lost_lives_and_evaluation_with_the_game(self) -> None:
        training, evaluation = (gym_env(each, 1, Rng(0)) for each in (self.SETTINGS, self.SETTINGS.for_evaluation()))
        assert training.spec == evaluation.spec
        assert str(training.spec) == "obs Box(4, 84, 84), action Discrete(4)"
        lives, [(over, values)] = self.play(training, 200), self.play(evaluation, 200)
        assert [each is not None for _, each in lives] == [False, False, False, False, True], "five lives"
        assert lives[-1][0] == over, "the same game, in five episodes and in one"
        assert lives[-1][1]["game_return"] == values["game_return"] > 0

    def play(self, env: Env, num_steps: int) -> list[tuple[int, Any]]:
        env.reset()
        draw, ends = np.random.default_rng(0), []
        for step in range(num_steps):
            result = env.step(torch.from_numpy(draw.integers(0, 4, env.num_lanes)))
            if result.terminated.any() or result.truncated.any():
                ends.append((step, (result.info or {}).get(EPISODE)))
        return ends

    def test_a_lane_is_put_back_into_the_middle_of_a_game(self) -> None:
        env = gym_env(self.SETTINGS, 2, Rng(0))
        self.play(env, 80)
        state = env.state_dict()
        assert (state["begun"] < state["episode"]).all(), "lives were lost in the games that are played"
        other = gym_env(self.SETTINGS, 2, Rng(0))
        other.load_state_dict(state)
        assert other.exactness == "exact"
        for step in range(40):
            action = torch.from_numpy(np.random.default_rng(step).integers(0, 4, 2))
            for one, again in zip(env.step(action)[:4], other.step(action)[:4], strict=True):
                np.testing.assert_array_equal(one, again)

    def test_is_for_atari(self) -> None:
        with pytest.raises(SettingsError, match="preset: atari is for ids of ale-py"):
            gym_env(settings_of(HOP, preset="atari", kwargs={}), 1, Rng(0))
