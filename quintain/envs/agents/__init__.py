"""Environments whose agents come and go: their specs, what they report at a step, and where each agent's data lies.

The names and shapes are those of ML-Agents' `mlagents_envs.base_env`, and any object that looks like one of its
environments is accepted: what it returns is turned into arrays once, in `boundary`.
"""
