"""The field table: the only place where a rollout's field names are written, with who writes each.

Legend: N lanes, T steps, B minibatch. Public shapes are [N, T+1, ...]; memory is time-major [T+1, N, ...].
Slot T holds the observation after the last step and its value (the bootstrap); its other fields are padding.
"""

from __future__ import annotations

from typing import Final

OBS: Final = "obs"
"""[N, T+1, ...] what the policy sees; one field per leaf, `obs.<name>`, where it is structured. Collector."""
ACTION: Final = "action"
"""[N, T+1, ...] what the policy chose, before clipping or squashing for the environment; also by leaf. Policy, before
the env steps."""
ACTION_MASK: Final = "action_mask"
"""[N, T+1, choices] bool, which choices are allowed at obs; only where the environment has masks. Collector."""
LOG_PROB: Final = "sample_log_prob"
"""[N, T+1] log-probability of the action when it was chosen. Policy."""
COMPONENTS: Final = "component_log_prob"
"""[N, T+1, K] the same of each choice and each number of the action by itself; only where each is clipped by itself.
Policy."""
VALUE: Final = "value"
"""[N, T+1] the critic's value of obs; [N, T+1, S] where each of S reward streams has its own. Policy."""
REWARD: Final = "reward"
"""[N, T+1] reward of the step. Environment."""
TERMINATED: Final = "terminated"
"""[N, T+1] bool, the episode really ended: nothing follows, so nothing is bootstrapped. Environment."""
TRUNCATED: Final = "truncated"
"""[N, T+1] bool, the episode was cut (time limit): bootstrapped from final_obs. Environment."""
DONE: Final = "done"
"""[N, T+1] bool, terminated or truncated. Collector."""
FIRST: Final = "first"
"""[N, T+1] bool, obs is the first of an episode. Collector."""
VALID: Final = "valid"
"""[N, T+1] bool, False where the step only reset the environment (next-step autoreset). Collector."""
FINAL_INDEX: Final = "final_index"
"""[N, T+1] int, row of the episode's true last observation in Rollout.final, or -1. Collector."""
FINAL_VALUE: Final = "final_value"
"""[N, T+1] value of final_obs where truncated and not terminated, else 0; [N, T+1, S] with several reward streams, and
then after every end, because some streams do not end there. Collector."""
NOISE: Final = "noise"
"""[N, T+1, K] random numbers for the policy's heads; acting is a pure function of them. Collector."""
POLICY_STATE: Final = "policy_state"
"""[N, S] the policy's memory before slot 0; only for policies that have one. Collector."""
POLICY_VERSION: Final = "policy_version"
"""[N, T+1] int, the published version that acted. Collector."""
ADVANTAGE: Final = "advantage"
"""[N, T+1] the mean of all reward streams' where there are several. Algorithm."""
RETURN: Final = "return"
"""[N, T+1] what the critic should have said; [N, T+1, S] with several reward streams. Algorithm."""
BASELINE: Final = "baseline"
"""[N, T+1] the critic's value of what the agent's mates saw and did and of obs, whatever the agent did; [N, T+1, S]
with several reward streams. Algorithm."""
MATES: Final = "mates"
"""[N, T+1, M] bool, which of M places other members of the agent's group take; only where groups learn. Collector."""
MATE_OBS: Final = "mate_obs"
"""[N, T+1, M, ...] what each of them saw; also by leaf. Collector."""
MATE_ACTION: Final = "mate_action"
"""[N, T+1, M, ...] what each of them chose; also by leaf. Collector."""
ENTROPY: Final = "entropy"
"""[B] entropy of the policy's distribution, in what evaluate_actions returns."""
NEXT: Final = "next_"
"""Begins the name of what a transition led to: `next_obs`, `next_action_mask`, [B, ...]. Replay."""
DISCOUNT: Final = "discount"
"""[B] how much the value of next_obs counts: gamma to the number of rewards, 0 after a true end. Replay."""
