"""A yardstick, not a library: environment, rollout and update of PPO as one XLA program, the idea of PureJaxRL."""

from __future__ import annotations

from typing import Any, NamedTuple

from workloads import Workload

from peers import Tick

KIT = "sbx"
PACKAGES = ("jax", "gymnax", "optax", "numpy")
ITERATIONS_PER_CALL = 5


def entries(work: Workload) -> tuple[str, ...]:
    is_cartpole = work.kind == "ppo" and work.env_id == "CartPole-v1"
    return ("compiled",) if is_cartpole and work.vectors == "any" and work.meter == "rate" else ()


class Carry(NamedTuple):
    """What one iteration hands to the next."""

    parameters: Any
    optimizer: Any
    env_state: Any
    obs: Any
    key: Any


def ppo(work: Workload, entry: str, seed: int, threads: int, tick: Tick) -> None:
    import jax

    carry, iteration = _program(work, seed)
    run = jax.jit(lambda carry: jax.lax.scan(iteration, carry, None, ITERATIONS_PER_CALL))
    done, is_over = 0, False
    while not is_over:
        carry, rewards = run(carry)
        jax.block_until_ready(rewards)
        done += ITERATIONS_PER_CALL * work.steps_per_iteration
        is_over = tick(done)


def _program(work: Workload, seed: int) -> tuple[Carry, Any]:
    """Returns the first carry, and the function that collects and learns once."""
    import gymnax
    import jax
    import jax.numpy as jnp
    import optax

    hyper, lanes, rows = work.ppo, work.num_envs, work.steps_per_iteration
    env, env_settings = gymnax.make("CartPole-v1")
    step_lanes = jax.vmap(env.step, (0, 0, 0, None))
    adam = optax.chain(optax.clip_by_global_norm(hyper.max_grad_norm), optax.adam(hyper.learning_rate, eps=1e-5))

    def network(key: Any, num_outputs: int) -> Any:
        sizes = (4, *hyper.hidden_sizes, num_outputs)
        keys = jax.random.split(key, len(sizes) - 1)
        make = jax.nn.initializers.orthogonal(1.4)
        pairs = zip(keys, sizes, sizes[1:], strict=False)
        return [(make(each, (inputs, outputs)), jnp.zeros(outputs)) for each, inputs, outputs in pairs]

    def forward(layers: Any, x: Any) -> Any:
        for weight, bias in layers[:-1]:
            x = jnp.tanh(x @ weight + bias)
        return x @ layers[-1][0] + layers[-1][1]

    def collect(carry: Any, _: Any) -> Any:
        parameters, env_state, obs, key = carry
        key, for_action, for_env = jax.random.split(key, 3)
        log_probs = jax.nn.log_softmax(forward(parameters[0], obs))
        value = forward(parameters[1], obs)[:, 0]
        action = jax.random.categorical(for_action, log_probs)
        log_prob = jnp.take_along_axis(log_probs, action[:, None], axis=1)[:, 0]
        keys = jax.random.split(for_env, lanes)
        next_obs, env_state, reward, done, _ = step_lanes(keys, env_state, action, env_settings)
        return (parameters, env_state, next_obs, key), (obs, action, log_prob, value, reward, done)

    def advantages(value: Any, reward: Any, done: Any, last_value: Any) -> Any:
        def back(carry: Any, step: Any) -> Any:
            advantage, next_value = carry
            value, reward, done = step
            goes_on = 1.0 - done
            error = reward + hyper.gamma * next_value * goes_on - value
            advantage = error + hyper.gamma * hyper.gae_lambda * goes_on * advantage
            return (advantage, value), advantage

        start = (jnp.zeros(lanes), last_value)
        return jax.lax.scan(back, start, (value, reward, done.astype(jnp.float32)), reverse=True)[1]

    def loss(parameters: Any, batch: Any) -> Any:
        obs, action, old_log_prob, advantage, target = batch
        log_probs = jax.nn.log_softmax(forward(parameters[0], obs))
        ratio = jnp.exp(jnp.take_along_axis(log_probs, action[:, None], axis=1)[:, 0] - old_log_prob)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        clipped = jnp.clip(ratio, 1 - hyper.clip_coef, 1 + hyper.clip_coef)
        policy_loss = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
        value_loss = ((forward(parameters[1], obs)[:, 0] - target) ** 2).mean()
        entropy = -(jnp.exp(log_probs) * log_probs).sum(axis=-1).mean()
        return policy_loss + hyper.value_coef * value_loss - hyper.entropy_coef * entropy

    def learn(carry: Any, minibatch: Any) -> Any:
        parameters, optimizer = carry
        changes, optimizer = adam.update(jax.grad(loss)(parameters, minibatch), optimizer)
        return (optax.apply_updates(parameters, changes), optimizer), None

    def iteration(carry: Carry, _: Any) -> tuple[Carry, Any]:
        start = (carry.parameters, carry.env_state, carry.obs, carry.key)
        (_, env_state, obs, key), steps = jax.lax.scan(collect, start, None, hyper.num_steps)
        seen, action, log_prob, value, reward, done = steps
        advantage = advantages(value, reward, done, forward(carry.parameters[1], obs)[:, 0])
        fields = (seen, action, log_prob, advantage, advantage + value)
        flat = jax.tree.map(lambda x: x.reshape(rows, *x.shape[2:]), fields)

        def epoch(carry: Any, _: Any) -> Any:
            parameters, optimizer, key = carry
            key, for_order = jax.random.split(key)
            order = jax.random.permutation(for_order, rows)
            shape = (hyper.num_minibatches, work.minibatch_size)
            minibatches = jax.tree.map(lambda x: x[order].reshape(*shape, *x.shape[1:]), flat)
            (parameters, optimizer), _ = jax.lax.scan(learn, (parameters, optimizer), minibatches)
            return (parameters, optimizer, key), None

        learner = (carry.parameters, carry.optimizer, key)
        (parameters, optimizer, key), _ = jax.lax.scan(epoch, learner, None, hyper.num_epochs)
        return Carry(parameters, optimizer, env_state, obs, key), reward.mean()

    key, for_actor, for_critic, for_env = jax.random.split(jax.random.PRNGKey(seed), 4)
    parameters = (network(for_actor, 2), network(for_critic, 1))
    obs, env_state = jax.vmap(env.reset, (0, None))(jax.random.split(for_env, lanes), env_settings)
    return Carry(parameters, adam.init(parameters), env_state, obs, key), iteration
