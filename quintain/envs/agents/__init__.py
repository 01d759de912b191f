"""Multi-agent environments whose agents come and go: specs, reports at a step, and slots of agents.

Names and shapes are those of ML-Agents' `mlagents_envs.base_env`. Any object with the interface of its environments is
accepted: returned values are converted to arrays once, in `boundary`.
"""
