"""Minecraft: an adapter for MineStudio's simulator, and an offline stand-in with tasks to learn."""

from __future__ import annotations

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "CommandsCallback": "quintain.envs.minecraft.callbacks",
        "FastResetCallback": "quintain.envs.minecraft.callbacks",
        "JudgeResetCallback": "quintain.envs.minecraft.callbacks",
        "MaskActionsCallback": "quintain.envs.minecraft.callbacks",
        "MinecraftCallback": "quintain.envs.minecraft.callbacks",
        "MinecraftEnv": "quintain.envs.minecraft.adapter",
        "PrevActionCallback": "quintain.envs.minecraft.callbacks",
        "RewardsCallback": "quintain.envs.minecraft.callbacks",
        "StandInSim": "quintain.envs.minecraft.stand_in",
        "SummonMobsCallback": "quintain.envs.minecraft.callbacks",
        "TaskCallback": "quintain.envs.minecraft.callbacks",
        "minecraft_sim": "quintain.envs.minecraft.adapter",
    },
)
