"""Nothing in the loops that run for every step or minibatch waits for a device; gradients come from one place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.architecture.source import PACKAGE, called_name, files, functions, place, tree_of

SYNCHRONISING = frozenset({"item", "cpu", "tolist"})

PER_STEP = {
    "rollouts/sync_collector.py": {
        "_step",
        "_act",
        "_take_in",
        "_admitted",
        "_follow_episodes",
        "_skip_resets",
        "_array",
    },
    "rollouts/agent_collector.py": {"take_in", "act", "_slot", "_noise", "_state", "_rows"},
    "rollouts/agent_assembler.py": {"end", "decide", "act", "_settle", "_close"},
    "rollouts/agent_world.py": {"_step", "_read"},
    "envs/agents/slots.py": {"find", "add", "remove"},
    "envs/agents/boundary.py": {"decisions", "ends", "_reports", "_obs", "_column", "_mask"},
    "algorithms/ppo.py": {"loss", "surrogate", "value_loss"},
    "algorithms/a2c.py": {"loss"},
    "algorithms/grpo.py": {"loss"},
    "algorithms/off_policy.py": {"gradient_step", "step_on", "minibatches", "soft_update_", "next_of"},
    "algorithms/dqn.py": {"loss", "targets_of", "update_targets"},
    "algorithms/td3.py": {"gradient_step", "loss", "targets_of", "policy_loss", "update_targets"},
    "algorithms/reinforce.py": {"loss"},
    "algorithms/sac.py": {
        "loss",
        "_loss_of",
        "_target",
        "_target_of",
        "_soft_value",
        "_of_actions_taken",
    },
    "compiled/soft_gradients.py": {"write", "_read", "_propose", "_value_taken", "_fit_critics", "_improve_policy"},
    "compiled/soft_learning.py": {"write_gradient"},
    "compiled/q_gradients.py": {"write"},
    "compiled/twin_gradients.py": {"write", "write_policy"},
    "compiled/replay_learning.py": {"write_gradient"},
    "compiled/dense_layers.py": {"evaluate", "differentiate"},
    "algorithms/replay_draws.py": {"draw"},
    "algorithms/twin_critics.py": {"encode", "values"},
    "policies/flat_parameters.py": {"soft_update_", "in_one_piece"},
    "policies/encoded_network.py": {"forward"},
    "policies/q_network.py": {"act", "best_action"},
    "policies/deterministic_actor.py": {"act", "actions", "continuous_of", "env_action"},
    "algorithms/temperature.py": {"coef", "loss"},
    "algorithms/poca.py": {"loss"},
    "algorithms/sequence_sac.py": {"loss", "minibatches", "_rows", "_remember", "soft_update_"},
    "rollouts/teammates.py": {"hear", "_share_rewards", "following", "settle", "look", "teammates_table", "_taken"},
    "policies/group_critic.py": {"value", "value_and_baseline", "forward", "_encode", "_judge"},
    "policies/soft_actor.py": {"act", "propose", "sample_with_grad", "continuous_of", "discrete_of", "_step"},
    "algorithms/base.py": {"minibatches", "evaluate_minibatch", "mirrored"},
    "algorithms/optimization.py": {"gradient_step", "total_loss", "step_optimizer"},
    "algorithms/minibatches.py": {"rows", "lanes", "only_valid", "split", "num_valid", "_gather"},
    "algorithms/symmetry.py": {"with_mirrors"},
    "algorithms/optimizer.py": {"step", "clear", "add", "apply"},
    "policies/actor_critic.py": {
        "act",
        "choose",
        "value_of",
        "evaluate_actions",
        "judge_actions",
        "env_action",
        "_step",
    },
    "policies/encoders.py": {"forward"},
    "policies/memory.py": {"step", "replay", "_next"},
    "policies/heads.py": {"sample", "mode", "evaluate", "env_action"},
    "policies/joint_head.py": {"sample", "mode", "evaluate", "env_actions"},
}
"""Functions that run once per step or per minibatch."""

ALLOWED = {("rollouts/sync_collector.py", "_array", "values.cpu")}
"""An environment may answer in tensors; following its episodes on the CPU takes one transfer of a few bits."""

RARE = frozenset({"__init__", "_finish", "_value_truncated", "_refuse_nonfinite"})
"""Functions of collectors that run once, or once per rollout."""


def synchronising_calls(node: ast.AST) -> list[ast.Call]:
    return [
        call
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in SYNCHRONISING
    ]


@pytest.mark.parametrize("name", PER_STEP)
def test_steps_and_minibatches_do_not_wait_for_a_device(name: str) -> None:
    path = PACKAGE / name
    hot = {function.name: function for function in functions(tree_of(path)) if function.name in PER_STEP[name]}
    assert hot.keys() == PER_STEP[name], "a function of the table was renamed"
    found = [
        f"{place(path, call)}: {function}: {called_name(call)}"
        for function, node in hot.items()
        for call in synchronising_calls(node)
        if (name, function, called_name(call)) not in ALLOWED
    ]
    assert not found, "\n".join(found)


def test_update_waits_only_after_its_minibatches() -> None:
    path = PACKAGE / "algorithms" / "ppo.py"
    [update] = [function for function in functions(tree_of(path)) if function.name == "update"]
    loops = [node for node in ast.walk(update) if isinstance(node, ast.For)]
    assert loops, "the minibatch loop moved; name its new place here"
    assert not [place(path, call) for loop in loops for call in synchronising_calls(loop)]


@pytest.mark.parametrize("path", sorted((PACKAGE / "rollouts").glob("*_collector.py")), ids=lambda path: path.name)
def test_collectors_wait_only_where_the_table_says(path: Path) -> None:
    name = f"rollouts/{path.name}"
    for function in functions(tree_of(path)):
        for call in synchronising_calls(function):
            is_rare = function.name in RARE
            assert is_rare or (name, function.name, called_name(call)) in ALLOWED, place(path, call)


def test_gradients_are_computed_in_one_file() -> None:
    calling = [
        path.relative_to(PACKAGE).as_posix()
        for path in files()
        for call in ast.walk(tree_of(path))
        if isinstance(call, ast.Call) and called_name(call).endswith(".backward")
    ]
    assert calling == ["algorithms/optimizer.py"]
