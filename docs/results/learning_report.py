"""Turns docs/results/learning-*.json into learning.md and, where matplotlib is installed, learning.png."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
PANELS = {
    "cartpole-demo": "CartPole, the demo",
    "cartpole-defaults": "CartPole, defaults",
    "a2c": "CartPole, A2C",
    "grpo": "CartPole, GRPO",
    "acrobot": "Acrobot",
    "pendulum": "Pendulum",
    "pendulum-sac": "Pendulum, by soft actor-critic",
    "memory": "Hidden velocities, GRU",
    "memory-lstm": "Hidden velocities, LSTM",
    "memory-none": "Hidden velocities, no memory",
    "workshop": "Workshop",
    "door-poca": "A door and its key, POCA",
    "door-ppo": "A door and its key, agents by themselves",
    "recall-ppo": "A signal to recall, GRU",
    "recall-lstm": "A signal to recall, LSTM",
    "recall-transformer": "A signal to recall, transformer",
    "recall-ppo-none": "A signal to recall, PPO without memory",
    "recall-sac": "A signal to recall, LSTM and soft actor-critic",
    "recall-none": "A signal to recall, no memory",
    "couriers-ppo": "Parcels, PPO",
    "couriers-poca": "Parcels, POCA",
    "couriers-sac": "Parcels, SAC",
    "balls-sac": "Balls on domes, SAC",
    "gates-sac": "Gates and bells, SAC",
    "catch": "Catch, from pixels",
    "clue-image-sac": "A clue in an image, SAC",
    "clue-images-sac": "A clue in two images, number and choice, SAC",
    "clue-images-ppo": "A clue in two images, number and choice, PPO",
    "clue-memory-sac": "A clue to remember, a number, SAC",
    "clue-memory-mixed-sac": "A clue to remember, number and choice, SAC",
    "minecraft-look": "Minecraft's stand-in: look",
    "minecraft-online": "Minecraft's stand-in: look, online PPO with a MinePolicy",
    "minecraft-recall-lstm": "Minecraft's stand-in: recall, LSTM",
    "minecraft-recall-transformer": "Minecraft's stand-in: recall, transformer",
    "minecraft-recall-none": "Minecraft's stand-in: recall, no memory",
}
INK, MUTED, GRID = "#1f2430", "#6b7280", "#e5e7eb"
LINE, GOAL = "#2563eb", "#d97706"


def main() -> None:
    records = [json.loads(path.read_text()) for name in PANELS if (path := HERE / f"learning-{name}.json").exists()]
    (HERE / "learning.md").write_text(page(records))
    if importlib.util.find_spec("matplotlib") is not None:
        draw(records, HERE / "learning.png")


def page(records: list[dict[str, Any]]) -> str:
    """Returns one table per task."""
    parts = [
        "# Does it learn?",
        "",
        "Every run below is one that a user can type. It is scored by 100 evaluation episodes of its best checkpoint, "
        "which is what `quintain eval` plays, and of its latest one. `make learning` repeats them all and rewrites "
        "this page. Seconds count the whole command, evaluation during training included, on two cores shared with "
        "other work, and for the first seed of a session also the import of torch; CPU seconds leave other work out. "
        "A run that must stay below its number is a control: it lacks what the task needs.",
        "",
        "![Mean return of training episodes against environment steps](learning.png)",
    ]
    for record in records:
        rows = record["outcomes"]
        is_control = record.get("is_control", False)
        good = sum((row["best_mean"] < record["target"]) == is_control for row in rows)
        aim = f"stays below {record['target']:g}" if is_control else f"at least {record['target']:g}"
        parts += [
            "",
            f"## {PANELS[record['task']]}",
            "",
            f"`{record['command']} --seed N`: {aim} with {good} of {len(rows)} seeds; median "
            f"{median(row['steps'] for row in rows):,.0f} steps, {median(row['cpu_seconds'] for row in rows):.1f} CPU "
            f"seconds.",
            "",
            "| seed | steps | best checkpoint | latest checkpoint | seconds | CPU seconds |",
            "|---|---|---|---|---|---|",
            *(
                f"| {row['seed']} | {row['steps']:,} | {row['best_mean']:.4g} | {row['latest_mean']:.4g} "
                f"| {row['seconds']:.1f} | {row['cpu_seconds']:.1f} |"
                for row in rows
            ),
        ]
        for before in record.get("earlier", []):
            scores = ", ".join(f"{row['best_mean']:.4g}" for row in before["outcomes"])
            seeds = ", ".join(str(row["seed"]) for row in before["outcomes"])
            parts += ["", f"Before, by `{before['command']}`, seeds {seeds}: {scores}."]
    return "\n".join([*parts, ""])


def draw(records: list[dict[str, Any]], path: Path) -> None:
    """Draws one panel per task: every seed thin, their mean bold, and the band from the worst to the best seed."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    style = {
        "font.size": 10,
        "text.color": INK,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
    }
    with plt.rc_context(style):
        num_rows = (len(records) + 1) // 2
        figure, grid = plt.subplots(num_rows, 2, figsize=(10, 3.3 * num_rows), layout="constrained")
        for axes, record in zip(grid.flat, records, strict=False):
            _draw_panel(axes, record)
        for axes in grid.flat[len(records) :]:
            axes.set_visible(False)
        figure.supxlabel("environment steps", fontsize=11)
        figure.supylabel("mean return of the last 100 training episodes", fontsize=11)
        figure.savefig(path, dpi=150, facecolor="white", metadata={"Software": None})
        plt.close(figure)


def _draw_panel(axes: Any, record: dict[str, Any]) -> None:
    import numpy as np
    from matplotlib.ticker import FuncFormatter

    curves = [_points(row["curve"]) for row in record["outcomes"]]
    ends = [steps[-1] for steps, _ in curves]
    stops_early = len(set(ends)) > 1
    for steps, values in curves:
        axes.plot(steps, values, color=LINE, alpha=0.75 if stops_early else 0.25, linewidth=0.9)
    if not stops_early:
        common = np.linspace(max(steps[0] for steps, _ in curves), min(ends), 300)
        stacked = np.array([np.interp(common, steps, values) for steps, values in curves])
        axes.fill_between(common, stacked.min(axis=0), stacked.max(axis=0), color=LINE, alpha=0.15, linewidth=0)
        axes.plot(common, stacked.mean(axis=0), color=LINE, linewidth=2)
    what = "what a control must stay below" if record.get("is_control", False) else "goal of the evaluation"
    goal = f"{what}: {record['target']:g}"
    axes.axhline(record["target"], color=GOAL, linewidth=1.2, linestyle=(0, (5, 3)), zorder=1, label=goal)
    # Evaluation takes the likeliest action and is not an average over older policies, hence its lead at the end.
    scores = [row["latest_mean"] for row in record["outcomes"]]
    axes.plot(ends, scores, "D", color=GOAL, markersize=4.5, clip_on=False, label="evaluation of the result, each seed")
    axes.legend(loc="lower right", frameon=False, fontsize=9, labelcolor=MUTED)
    count = len(curves)
    seeds = "1 seed" if count == 1 else f"{count} seeds"
    about = f"{seeds}, a line each" if stops_early or count == 1 else f"{seeds}, mean and range"
    axes.set_title(PANELS[record["task"]], loc="left", fontsize=12, fontweight="bold")
    axes.set_title(about, loc="right", fontsize=9, color=MUTED)
    axes.set_xlim(0, max(ends) * 1.03)
    axes.margins(y=0.06)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda steps, _: f"{steps / 1000:.0f}k" if steps else "0"))
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _points(text: str) -> tuple[list[int], list[float]]:
    pairs = [point.split(":") for point in text.split()]
    return [int(step) for step, _ in pairs], [float(value) for _, value in pairs]


if __name__ == "__main__":
    main()
