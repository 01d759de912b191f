"""PPO in one file: everything that `quintain train ppo ENV` computes, written down once more without quintain.

    python examples/ppo_in_one_file.py --seed 3 --total-steps 20000
    python examples/ppo_in_one_file.py --env-id Pendulum-v1 --normalize-obs true

This is the executable specification. From the same seed and settings it arrives at the same weights as the framework,
bit for bit; tests/parity/test_one_file.py holds both to it. Read it from top to bottom: settings, random numbers, the
agent, then the training loop. Legend: N lanes (environments that step together), T steps of a rollout, B minibatch.
"""

import argparse
import hashlib
import math
from collections import deque
from dataclasses import dataclass, fields

import gymnasium
import numpy as np
import torch
from torch import nn


@dataclass(frozen=True)
class Args:
    env_id: str = "CartPole-v1"  # any Gymnasium id with vector observations, and Discrete or vector Box actions
    seed: int = 0  # start of every random stream
    total_steps: int = 100_000  # environment steps to learn from, over all lanes
    max_episode_steps: int = 0  # time limit of an episode; 0 keeps the environment's own
    num_lanes: int = 8  # environments that step together (N)
    num_steps: int = 128  # steps of each lane in one rollout (T)
    num_epochs: int = 10  # passes over each rollout
    batch_size: int = 256  # steps in one minibatch (B)
    learning_rate: float = 1e-3  # step size of Adam at the start
    anneal_learning_rate: bool = False  # lower the step size linearly to 0 over the run
    adam_eps: float = 1e-5  # term in Adam's denominator
    max_grad_norm: float = 0.5  # bound on the norm of the whole gradient
    gamma: float = 0.99  # discount of the next step's return
    gae_lambda: float = 0.95  # mix of bootstrapped (0) and sampled (1) returns in an advantage
    clip_coef: float = 0.2  # how far the probability ratio may leave 1 before its gradient is cut
    value_coef: float = 0.5  # weight of the value loss
    entropy_coef: float = 0.0  # weight of the entropy bonus
    hidden_size: int = 64  # width of each of the two hidden layers
    normalize_obs: bool = False  # scale observations by their running mean and deviation
    obs_clip: float = 10.0  # bound on normalised observations, in deviations


# ---------------------------------------------------------------------------------------------------------------------
# Random numbers. Each is a pure function of (seed, name of its stream, counters) and not of what was drawn before, so a
# run can stop anywhere and continue, and a lane never notices how many neighbours it has.


def stream_key(seed: int, stream: str, *counters: int) -> int:
    """Returns 64 bits for one purpose, such as the order of the minibatches in update 7, epoch 2."""
    text = f"{seed}:{stream}:{','.join(map(str, counters))}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def philox(counter: tuple[int, int, int, int], key: int) -> tuple[int, int, int, int]:
    """Philox4x32-10 (Salmon et al., SC 2011): four 32-bit words, mixed by ten rounds of multiply and xor."""
    a, b, c, d = counter
    low, high = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b = (right >> 32) ^ b ^ low, right & 0xFFFFFFFF
        c, d = (left >> 32) ^ d ^ high, left & 0xFFFFFFFF
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return a, b, c, d


def random_words(key: int, step: int, lane: int, how_many: int) -> list[int]:
    """Returns the 32-bit words that belong to one step of one lane."""
    blocks = [philox((step & 0xFFFFFFFF, step >> 32, lane, block), key) for block in range((how_many + 3) // 4)]
    return [word for block in blocks for word in block][:how_many]


def uniform(key: int, step: int, num_lanes: int) -> torch.Tensor:
    """Returns one number in [0, 1) for each lane, [N, 1]; 24 bits, because float32 holds those exactly."""
    words = [random_words(key, step, lane, 1) for lane in range(num_lanes)]
    return torch.tensor([[(word >> 8) * 2.0**-24 for word in lane] for lane in words])


def normal(key: int, step: int, num_lanes: int, size: int) -> torch.Tensor:
    """Returns standard normals [N, size] by Box-Muller: pairs of words give cosines first, then sines."""
    pairs = (size + 1) // 2
    words = np.array([random_words(key, step, lane, 2 * pairs) for lane in range(num_lanes)])
    inside = (words + 0.5) * 2.0**-32  # never 0, so the logarithm is finite
    radius, angle = np.sqrt(-2.0 * np.log(inside[:, :pairs])), 2.0 * np.pi * inside[:, pairs:]
    both = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)), axis=1)
    return torch.from_numpy(both[:, :size]).float()


# ---------------------------------------------------------------------------------------------------------------------
# The agent: an actor and a critic that share nothing but the scale of the observations.


class Agent(nn.Module):
    def __init__(self, args: Args, env: gymnasium.Env) -> None:
        super().__init__()
        self.args = args
        self.is_discrete = isinstance(env.action_space, gymnasium.spaces.Discrete)
        num_obs = math.prod(env.observation_space.shape)
        num_outputs = int(env.action_space.n) if self.is_discrete else math.prod(env.action_space.shape)
        if not self.is_discrete:
            self.log_std = nn.Parameter(torch.zeros(num_outputs))
        # The actor draws its weights first, layer by layer, then the critic continues with the same generator.
        generator = torch.Generator().manual_seed(stream_key(args.seed, "policy/init") & 0x7FFFFFFFFFFFFFFF)
        self.actor = network(num_obs, args.hidden_size, num_outputs, 0.01, generator)
        self.critic = network(num_obs, args.hidden_size, 1, 1.0, generator)
        self.register_buffer("shift", torch.zeros(num_obs))
        self.register_buffer("scale", torch.ones(num_obs))

    def features(self, obs: torch.Tensor) -> torch.Tensor:
        if not self.args.normalize_obs:
            return obs
        return ((obs - self.shift) * self.scale).clamp(-self.args.obs_clip, self.args.obs_clip)

    def published_scale(self) -> tuple[np.ndarray, np.ndarray]:
        return self.shift.double().numpy(), self.scale.double().numpy()

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return self.critic(self.features(obs)).squeeze(-1)

    def noise(self, step: int) -> torch.Tensor:
        """Returns the random numbers of one step of all lanes: a uniform to choose by, or a normal per number."""
        kind = "uniform" if self.is_discrete else "normal"
        key, num_lanes = stream_key(self.args.seed, f"acting/{kind}"), self.args.num_lanes
        return uniform(key, step, num_lanes) if self.is_discrete else normal(key, step, num_lanes, len(self.log_std))

    def act(self, obs: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns actions and their log-probabilities; a pure function of the noise."""
        output = self.actor(self.features(obs))
        if self.is_discrete:
            # The inverse of the cumulative distribution: count the actions whose share lies wholly below the noise.
            log_probs = torch.log_softmax(output, dim=-1)
            action = (log_probs.exp().cumsum(dim=-1) <= noise)[:, :-1].sum(dim=-1)
            return action, log_probs.gather(1, action[:, None])[:, 0]
        log_prob = -0.5 * noise.square() - self.log_std - 0.5 * math.log(2.0 * math.pi)
        return output + self.log_std.exp() * noise, log_prob.sum(dim=-1)

    def judge(self, obs: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns log-probability, entropy and value [B] of what was done, with gradients."""
        output, value = self.actor(self.features(obs)), self.value(obs)
        if self.is_discrete:
            log_probs = torch.log_softmax(output, dim=-1)
            entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
            return log_probs.gather(1, action[:, None])[:, 0], entropy, value
        noise = (action - output) * (-self.log_std).exp()
        log_prob = (-0.5 * noise.square() - self.log_std - 0.5 * math.log(2.0 * math.pi)).sum(dim=-1)
        entropy = (self.log_std + (0.5 * math.log(2.0 * math.pi) + 0.5)).sum().expand_as(log_prob)
        return log_prob, entropy, value


def network(num_inputs: int, width: int, num_outputs: int, gain: float, generator: torch.Generator) -> nn.Sequential:
    """Makes a perceptron with orthogonal weights and zero biases; a small last gain starts near even chances."""
    layers = [nn.Linear(num_inputs, width), nn.Linear(width, width), nn.Linear(width, num_outputs)]
    for layer, layer_gain in zip(layers, (math.sqrt(2.0), math.sqrt(2.0), gain), strict=True):
        nn.init.orthogonal_(layer.weight, layer_gain, generator=generator)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


class RunningScale:
    """Mean and variance of all observations so far, in float64, joined batch by batch (Chan et al. 1979)."""

    def __init__(self, size: int) -> None:
        self.count, self.mean, self.squares = 0, np.zeros(size), np.zeros(size)

    def add(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Takes observations [B, size] into account and returns the mean and one over the deviation."""
        total, mean = self.count + len(obs), obs.mean(axis=0)
        gap = mean - self.mean
        self.squares = self.squares + np.square(obs - mean).sum(axis=0) + gap**2 * (self.count * len(obs) / total)
        self.mean, self.count = self.mean + gap * (len(obs) / total), total
        return self.mean, 1.0 / np.sqrt(self.squares / total + 1e-8)


Scale = tuple[np.ndarray, np.ndarray]  # what is subtracted from observations, and what they are then multiplied by


def relation(old: Scale, new: Scale, clip: float, count: int, variance: np.ndarray, obs: np.ndarray) -> Scale:
    """Returns factor and offset: inputs on the old scale, which `count` observations of that variance made, are those
    on the new one, to which `obs` [B, size] were added, times factor plus offset."""
    (shift, scale), (new_shift, new_scale) = old, new
    factor, offset = scale / new_scale, (new_shift - shift) * scale
    # Where inputs are clipped there is no such line. The one that fits all observations best stands in for it; earlier
    # ones count by their mean and variance. Each single input asks for a factor between 1 and that without clipping.
    free, new_free = (obs - shift) * scale, (obs - new_shift) * new_scale
    seen, new_seen = free.clip(-clip, clip), new_free.clip(-clip, clip)
    total, center = count + len(obs), (shift - new_shift) * new_scale
    mean, new_mean = seen.sum(axis=0) / total, (new_seen.sum(axis=0) + count * center) / total
    shared = ((seen * new_seen).sum(axis=0) + count * variance * scale * new_scale) / total - mean * new_mean
    spread = ((new_seen**2).sum(axis=0) + count * (variance * new_scale**2 + center**2)) / total - new_mean**2
    slope = np.divide(shared, spread, out=np.ones_like(spread), where=spread > 0.0)
    fitted = slope.clip(np.minimum(factor, 1.0), np.maximum(factor, 1.0))
    is_clipped = ((np.abs(free) > clip) | (np.abs(new_free) > clip)).any(axis=0)
    factor, offset = np.where(is_clipped, (fitted, mean - fitted * new_mean), (factor, offset))
    # What never varied had no scale: its weights stay, and so does the output where it stood.
    is_still = variance <= 1e-8
    return np.where(is_still, 1.0, factor), np.where(is_still, (new_shift - shift) * new_scale, offset)


@torch.no_grad()
def fold(factor: torch.Tensor, offset: torch.Tensor, layer: nn.Linear, moments: list[tuple[torch.Tensor, ...]]) -> None:
    """Lets a layer compute from new inputs what it did from old ones; Adam's moments (weight, bias) follow."""
    (first, bias_first), (second, _) = moments
    layer.bias += layer.weight.double() @ offset
    layer.weight.copy_(layer.weight.double() * factor)
    first.copy_((first.double() - bias_first.double()[:, None] * offset) / factor)
    second.copy_(second.double() / factor.square())  # all that is known of its change


# ---------------------------------------------------------------------------------------------------------------------
# The training loop: collect, estimate, update, publish, until the budget is spent.


def train(args: Args, show=print) -> Agent:
    torch.set_num_threads(1)  # the number of threads decides the order of sums, and so the last bits

    # The lanes. Every episode is reset with a seed of its own: a function of lane and episode, not of history.
    limit = {"max_episode_steps": args.max_episode_steps} if args.max_episode_steps else {}
    envs = [gymnasium.make(args.env_id, **limit) for _ in range(args.num_lanes)]
    episode = [-1] * args.num_lanes

    def reset(lane: int) -> np.ndarray:
        episode[lane] += 1
        seed = stream_key(args.seed, "env/reset", lane, episode[lane], 0) & 0x7FFFFFFF
        return envs[lane].reset(seed=seed)[0]

    agent = Agent(args, envs[0])
    running_scale = RunningScale(len(agent.shift))
    space = envs[0].action_space
    # Adam sees all weights as one vector: clipping is by the norm of the whole gradient, and each sum has one order.
    weights = list(agent.parameters())
    vector = nn.Parameter(nn.utils.parameters_to_vector(weights))
    optimizer = torch.optim.Adam([vector], eps=args.adam_eps, fused=True)

    # One rollout. Slot T of obs and value is what comes after the last step.
    T, N = args.num_steps, args.num_lanes
    obs = torch.zeros(T + 1, N, len(agent.shift))
    action = torch.zeros(T, N, dtype=torch.int64) if agent.is_discrete else torch.zeros(T, N, *space.shape)
    log_prob, reward, final_value, value = (torch.zeros(rows, N) for rows in (T, T, T, T + 1))
    done = torch.zeros(T, N, dtype=torch.bool)

    episode_return, last_returns = [0.0] * N, deque(maxlen=100)
    steps = updates = 0
    obs[T] = torch.tensor(np.array([reset(lane) for lane in range(N)]))

    while steps < args.total_steps:
        # --- collect: T steps of every lane ---------------------------------------------------------------------------
        obs[0] = obs[T]
        cut_at, cut_obs = [], []
        with torch.no_grad():
            for t in range(T):
                action[t], log_prob[t] = agent.act(obs[t], agent.noise(updates * T + t))
                value[t] = agent.value(obs[t])
                # Only the environment sees the clipped action: the log-probability belongs to the sampled one.
                raw = action[t].numpy()
                command = raw + space.start if agent.is_discrete else raw.clip(space.low, space.high)
                for lane, env in enumerate(envs):
                    after, reward[t, lane], terminated, truncated, _ = env.step(command[lane])
                    episode_return[lane] += float(reward[t, lane])
                    done[t, lane] = terminated or truncated
                    if truncated and not terminated:
                        cut_at.append((t, lane))
                        cut_obs.append(after)
                    if terminated or truncated:
                        last_returns.append(episode_return[lane])
                        episode_return[lane] = 0.0
                        after = reset(lane)
                    obs[t + 1, lane] = torch.as_tensor(after)
            value[T] = agent.value(obs[T])
            # An episode that was cut is worth what its own last observation promises; one that terminated, nothing.
            final_value.zero_()
            if cut_at:
                final_value[tuple(zip(*cut_at, strict=True))] = agent.value(torch.tensor(np.array(cut_obs)).float())

        # --- estimate: generalised advantages (Schulman et al. 2016, eq. 16) ------------------------------------------
        advantage = torch.zeros(T, N)
        following = torch.zeros(N)
        for t in reversed(range(T)):
            next_value = torch.where(done[t], final_value[t], value[t + 1])
            delta = reward[t] + args.gamma * next_value - value[t]
            advantage[t] = following = delta + args.gamma * args.gae_lambda * ~done[t] * following
        target = advantage + value[:T]
        deviation, mean = torch.std_mean(advantage, correction=0)
        advantage = (advantage - mean) / (deviation + 1e-8)

        # --- update: epochs of minibatches (Schulman et al. 2017, eq. 7 and 9) ----------------------------------------
        fraction = min(1.0, steps / args.total_steps)
        rate = (1.0 - fraction) * args.learning_rate if args.anneal_learning_rate else args.learning_rate
        optimizer.param_groups[0]["lr"] = rate
        rows = [field.flatten(0, 1) for field in (obs[:T], action, log_prob, advantage, target)]  # [T * N, ...]
        for epoch in range(args.num_epochs):
            key = stream_key(args.seed, "algorithm/minibatches", updates, epoch)
            order = torch.from_numpy(np.random.Generator(np.random.Philox(key=key)).permutation(T * N))
            for chosen in torch.split(order, args.batch_size):
                seen, taken, old_log_prob, gain, goal = (field[chosen] for field in rows)
                new_log_prob, entropy, new_value = agent.judge(seen, taken)
                ratio = (new_log_prob - old_log_prob).exp()
                clipped_ratio = ratio.clamp(1.0 - args.clip_coef, 1.0 + args.clip_coef)
                policy_loss = -torch.min(gain * ratio, gain * clipped_ratio).mean()
                value_loss = (new_value - goal).square().mean()
                loss = policy_loss + args.value_coef * value_loss - args.entropy_coef * entropy.mean()

                agent.zero_grad()
                loss.backward()
                gradient = torch.cat([weight.grad.flatten() for weight in weights])
                vector.grad = gradient * (args.max_grad_norm / (gradient.norm() + 1e-6)).clamp(max=1.0)
                optimizer.step()
                nn.utils.vector_to_parameters(vector.detach(), weights)

        # --- publish: only now may the scale of observations change, after the rollout it was used for ----------------
        if args.normalize_obs:
            seen, count = rows[0].double().numpy(), running_scale.count
            old, variance = agent.published_scale(), running_scale.squares / max(count, 1)
            agent.shift[:], agent.scale[:] = map(torch.from_numpy, running_scale.add(seen))
            # Actor and critic stay the functions that they were, once the scale is more than a guess.
            if count >= 10_000:
                line = relation(old, agent.published_scale(), args.obs_clip, count, variance, seen)
                sizes, state = [weight.numel() for weight in weights], optimizer.state[vector]
                moments = [torch.split(state[name], sizes) for name in ("exp_avg", "exp_avg_sq")]
                for layer in (agent.actor[0], agent.critic[0]):
                    at = next(i for i, weight in enumerate(weights) if weight is layer.weight)  # its bias comes next
                    own = [(moment[at].view_as(layer.weight), moment[at + 1]) for moment in moments]
                    fold(*map(torch.from_numpy, line), layer, own)
                vector.data.copy_(nn.utils.parameters_to_vector(weights))
        steps += T * N
        updates += 1
        shown = f"{np.mean(last_returns):8.2f}" if last_returns else "       -"
        show(f"step {steps:8d}   return {shown}   value loss {value_loss.item():9.4f}   lr {rate:.2e}")

    return agent


def digest(agent: Agent) -> str:
    """Returns the SHA-256 of all weights, in the order of their names."""
    weights = sorted(agent.state_dict().items())
    return hashlib.sha256(b"".join(name.encode() + tensor.numpy().tobytes() for name, tensor in weights)).hexdigest()


def parse_args() -> Args:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for field in fields(Args):
        parse = (lambda text: text.lower() in ("true", "yes", "1")) if field.type is bool else field.type
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=parse, default=field.default)
    return Args(**vars(parser.parse_args()))


if __name__ == "__main__":
    print("weights", digest(train(parse_args())))
