"""Trains with tuned settings by one seed, plays without exploring, and prints the returns after RESULT.

python tuned_run.py ALGORITHM ENV SEED EPISODES
"""

from __future__ import annotations

import json
import sys
import time

RESULT = "RESULT "


def main(algorithm: str, env_id: str, seed: str, num_episodes: str) -> None:
    import torch

    from quintain import Trainer, evaluate
    from quintain.envs.settings import GymSettings
    from quintain.settings.tuned import tuned_settings

    torch.set_num_threads(1)
    started = time.process_time()
    trainer = Trainer(algorithm, env_id, tuned=True, events=[], writers=[], seed=int(seed), threads=1)
    trainer.train()
    row = {"cpu_seconds": time.process_time() - started}
    # A policy of images sees them as it did in training.
    env = GymSettings(id=env_id, preset=tuned_settings(algorithm, env_id).file.settings.get("preset"))
    played = evaluate(trainer.policy, env, episodes=int(num_episodes))
    print(RESULT + json.dumps({**row, "returns": list(played.returns)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
