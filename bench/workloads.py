"""What is measured: each workload in terms that every peer understands. What quintain must reach is in wanted.toml.

Needs nothing but Python, because it is read inside every peer's interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from wanted import WANTED, Claim

IMAGES = "image_env:Images"
BREAKOUT = "image_env:breakout"

CLOSE_CALL = 1.3
"""A ratio under this says nothing unless runs are longer and more."""


@dataclass(frozen=True)
class PPO:
    """How PPO learns; two separate tanh perceptrons, or one NatureCNN under two linear layers for images."""

    num_steps: int = 128
    num_epochs: int = 4
    num_minibatches: int = 4
    hidden_sizes: tuple[int, ...] = (64, 64)
    learning_rate: float = 3e-4
    entropy_coef: float = 0.01
    value_coef: float = 0.5
    max_grad_norm: float = 0.5
    clip_coef: float = 0.2
    gamma: float = 0.99
    gae_lambda: float = 0.95
    memory_size: int = 0
    """Numbers of an LSTM in front of the perceptrons; 0: there is none."""
    is_annealed: bool = False
    """Whether learning rate and clip range fall to zero over the run."""

    def minibatch_size(self, num_envs: int) -> int:
        return num_envs * self.num_steps // self.num_minibatches


@dataclass(frozen=True)
class SAC:
    """How SAC learns: one environment, one gradient step per step, two critics of 2x256 relu."""

    batch_size: int = 256
    hidden_sizes: tuple[int, ...] = (256, 256)
    learning_rate: float = 3e-4
    buffer_size: int = 100_000
    learning_starts: int = 1000
    tick_every: int = 100


@dataclass(frozen=True)
class Workload:
    """One row of the report."""

    name: str
    title: str
    kind: Literal["ppo", "sac", "step_io"]
    env_id: str
    num_envs: int
    ppo: PPO = PPO()
    sac: SAC = SAC()
    threads: tuple[int, ...] = (1,)
    """Threads a process may use; each number is measured, and a peer's best counts."""
    vectors: Literal["gymnasium", "any"] = "gymnasium"
    """Whether everybody steps Gymnasium's environments, or the fastest that they support."""
    meter: Literal["rate", "goal", "parts"] = "rate"
    total_steps: int = 10**9
    goal: float | None = None
    peers: tuple[str, ...] | None = None
    """Who is measured; None: whoever can."""
    max_repetitions: int = 1000
    """How often it is measured at most, because one run says it all."""

    @property
    def claims(self) -> tuple[Claim, ...]:
        """What must be reached, or is striven for."""
        return WANTED.claims.get(self.name, ())

    @property
    def enough_rounds(self) -> int:
        """How many rounds of one commit make the row complete."""
        return min(WANTED.rounds, self.max_repetitions)

    @property
    def steps_per_iteration(self) -> int:
        return self.num_envs * self.ppo.num_steps

    @property
    def minibatch_size(self) -> int:
        return self.ppo.minibatch_size(self.num_envs)

    @property
    def is_image(self) -> bool:
        return self.env_id in (IMAGES, BREAKOUT)

    @property
    def is_discrete(self) -> bool:
        return self.env_id != "HalfCheetah-v5"

    def repetitions(self, asked: int) -> int:
        """Returns how many runs of everybody are wanted where so many were asked for."""
        return min(asked * self.effort, self.max_repetitions)

    @property
    def effort(self) -> int:
        """How many times longer runs are, and how many times as many there are."""
        required = [claim.at_least for claim in self.claims if not claim.is_aim]
        return 2 if required and min(required) < CLOSE_CALL else 1


_CARTPOLE = Workload("ppo_cartpole_8", "PPO, CartPole-v1, 8 Gymnasium environments", "ppo", "CartPole-v1", 8)
_CHEETAH = Workload("ppo_halfcheetah_8", "PPO, HalfCheetah-v5, 8 Gymnasium environments", "ppo", "HalfCheetah-v5", 8)
_IMAGES = Workload(
    "ppo_images_8",
    "PPO, synthetic 84x84x4 images, NatureCNN, 8 environments",
    "ppo",
    IMAGES,
    8,
    ppo=PPO(num_steps=64, hidden_sizes=(), learning_rate=2.5e-4, clip_coef=0.1),
)
_SAC = Workload(
    "sac_halfcheetah",
    "SAC, HalfCheetah-v5, one gradient step per step, one thread",
    "sac",
    "HalfCheetah-v5",
    1,
)
# The settings that rl-zoo3 has for PPO on CartPole-v1.
_ZOO = PPO(
    num_steps=32,
    num_epochs=20,
    num_minibatches=1,
    learning_rate=1e-3,
    entropy_coef=0.0,
    gamma=0.98,
    gae_lambda=0.8,
    is_annealed=True,
)


def _growth(num_lanes: int) -> Workload:
    """Returns PPO on CartPole with minibatches that stay the same size once there are enough rows."""
    num_steps = 32
    return Workload(
        f"growth_lanes_{num_lanes}",
        f"growth: PPO, CartPole-v1, {num_lanes} lanes",
        "ppo",
        "CartPole-v1",
        num_lanes,
        ppo=PPO(num_steps=num_steps, num_minibatches=max(1, num_lanes * num_steps // 2048)),
        vectors="any",
        peers=("quintain", "sb3"),
    )


GROWTH_LANES = (1, 8, 64, 512, 4096)

WORKLOADS: dict[str, Workload] = {
    work.name: work
    for work in (
        _CARTPOLE,
        replace(
            _CARTPOLE,
            name="ppo_cartpole_64",
            title="PPO, CartPole-v1, 64 Gymnasium environments",
            num_envs=64,
        ),
        replace(
            _CARTPOLE,
            name="ppo_cartpole_64_fastest",
            title="PPO, CartPole-v1, 64 lanes of the fastest environment each side has, at most 2 cores",
            num_envs=64,
            threads=(1, 2),
            vectors="any",
        ),
        replace(
            _CARTPOLE,
            name="ppo_memory_cartpole_8",
            title="PPO with an LSTM of 64, CartPole-v1, 8 Gymnasium environments",
            ppo=PPO(memory_size=64),
            peers=("quintain", "sb3_contrib"),
        ),
        _CHEETAH,
        replace(
            _CHEETAH,
            name="ppo_halfcheetah_64",
            title="PPO, HalfCheetah-v5, 64 Gymnasium environments",
            num_envs=64,
        ),
        replace(
            _CHEETAH,
            name="ppo_halfcheetah_8_fastest",
            title="PPO, HalfCheetah-v5, 8 lanes of the fastest environment each side has, at most 2 cores",
            threads=(1, 2),
            vectors="any",
        ),
        _IMAGES,
        replace(
            _IMAGES,
            name="ppo_images_8_2threads",
            title="PPO, synthetic 84x84x4 images, NatureCNN, 8 environments, 2 threads",
            threads=(2,),
            vectors="any",
        ),
        replace(
            _IMAGES,
            name="ppo_breakout_8",
            title="PPO, Breakout (84x84x4), NatureCNN, 8 environments",
            env_id=BREAKOUT,
        ),
        _SAC,
        replace(
            _SAC,
            name="sac_halfcheetah_2threads",
            title="SAC, HalfCheetah-v5, one gradient step per step, 2 threads",
            threads=(2,),
        ),
        replace(
            _CARTPOLE,
            name="solve_cartpole",
            title="CartPole-v1 from the start of the process to a mean return of 475 over 20 training episodes",
            ppo=_ZOO,
            meter="goal",
            vectors="any",
            total_steps=100_000,
            goal=475.0,
        ),
        Workload("step_io_64", "writing and reading one vector step, 64 lanes", "step_io", "CartPole-v1", 64),
        *(_growth(num_lanes) for num_lanes in GROWTH_LANES),
        replace(
            _CARTPOLE,
            name="growth_length",
            title="growth: PPO, CartPole-v1, 64 lanes, over 10 million steps",
            num_envs=64,
            vectors="any",
            meter="parts",
            total_steps=10_000_000,
            peers=("quintain",),
            max_repetitions=1,
        ),
    )
}
