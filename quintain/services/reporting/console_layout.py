"""Draws a run on the terminal: its header, the live block, one plain line, and the closing lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group
from rich.text import Text

from quintain.services.reporting.console_text import ASCII, UNICODE, Glyphs, flow, progress_bar, sparkline
from quintain.services.reporting.console_view import BehaviorView, Curve, Health, RunView
from quintain.services.reporting.digits import duration, grouped, measured, plural, short_count, spread
from quintain.services.reporting.printable import escape_control_characters, fit_encoding
from quintain.services.reporting.writers import RunHeader, RunSummary

LABEL_WIDTH = 9
GAP = "   "
MIN_BAR_WIDTH = 8
MIN_CURVE_WIDTH = 6
MIN_HEIGHT_FOR_LOSSES = 14
EPISODES = "time/episodes"
"""The metric that counts episodes."""
TIME_SHARES = ("env", "act", "learn", "other")
ENDINGS = {"finished": "done in", "stopped": "stopped after", "failed": "failed after"}
ENDING_STYLES = {"finished": "bold green", "stopped": "bold yellow", "failed": "bold red"}


def outside_text(text: str, encoding: str) -> str:
    """Escapes foreign text for this terminal."""
    return fit_encoding(escape_control_characters(text), encoding)


def glyphs_for(options: ConsoleOptions) -> Glyphs:
    return ASCII if options.ascii_only else UNICODE


@dataclass(frozen=True)
class HeaderLines:
    """Renders the parts of a run, its directory, and how to stop it."""

    header: RunHeader

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        header, glyphs = self.header, glyphs_for(options)
        words = [
            outside_text(header.algorithm, options.encoding),
            # A loop of the user's own has neither.
            *(
                [outside_text(header.env, options.encoding), plural(header.num_lanes, "lane")]
                if header.num_lanes
                else []
            ),
            *([plural(header.num_ranks, "rank")] if header.num_ranks > 1 else []),
            f"{outside_text(header.device, options.encoding)} ({plural(header.cores, 'core')})",
            f"seed {header.seed}",
        ]
        what = [Text(f"quintain {header.version}", "bold"), *map(Text, words)]
        where = [Text(f"from step {grouped(header.start_step)}")] if header.start_step else []
        if header.forked_from is not None:
            where.append(Text(f"forked from {outside_text(header.forked_from, options.encoding)}"))
        if header.run_directory is None:
            where.append(Text("Ctrl-C once stops"))
        else:
            run = Text.assemble(
                "run ", (outside_text(header.shown_directory or header.run_directory, options.encoding), "cyan")
            )
            where = [run, *where, Text("Ctrl-C once saves and stops")]
        for parts in (what, where):
            yield from flow(parts, gap=f" {glyphs.dot} ", width=options.max_width)


class LiveBlock:
    """Renders the current state of a run; drawn again whenever the view has changed."""

    def __init__(self, view: RunView) -> None:
        self.view = view
        self.line_lengths: list[int] = []
        """Those of the last drawing; in a terminal that has become narrower, such a line takes several rows."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        glyphs, width, view = glyphs_for(options), options.max_width, self.view
        rule = Text(glyphs.rule * width, "dim")
        lines = [rule, *self._progress(width, glyphs)]
        rows = [
            *(("return", _return_parts(view, each, glyphs), each.returns) for each in view.behaviors),
            *(("eval", _eval_parts(view, each, glyphs), each.evals) for each in view.behaviors),
            *(("health", _health_parts(view, each, glyphs), None) for each in view.behaviors),
            *(("loss", _loss_parts(view, each, width), None) for each in view.behaviors),
            ("time", _time_parts(view), None),
        ]
        before = ""
        for label, parts, curve in rows:
            # Losses are the first to give way where the terminal is low.
            if parts and (label != "loss" or console.size.height > MIN_HEIGHT_FOR_LOSSES):
                labelled = [Text.assemble(_label(label if label != before else ""), parts[0]), *parts[1:]]
                flowing = flow(labelled, gap=GAP, width=width, indent=" " * LABEL_WIDTH)
                room = width - flowing[-1].cell_len - len(GAP)
                if curve is not None and room >= MIN_CURVE_WIDTH and len(points := curve.points(room)) > 1:
                    flowing[-1] = Text.assemble(flowing[-1], GAP, (sparkline(points, glyphs), "cyan"))
                lines += flowing
                before = label
        lines.append(rule)
        self.line_lengths = [line.cell_len for line in lines]
        yield from lines

    def _progress(self, width: int, glyphs: Glyphs) -> list[Text]:
        view = self.view
        left = "" if view.seconds_left is None else f"{duration(view.seconds_left)} left"
        unit, done, budget = view.position
        steps = f"{grouped(done)} / {grouped(budget or 0)}"
        bar_width = width - LABEL_WIDTH - len(steps) - len("  ") - len("  100%") - len(GAP) - len(left)
        if bar_width < MIN_BAR_WIDTH:
            parts = [Text.assemble(_label(unit), f"{steps}  {view.fraction:.0%}"), Text(left)]
            return flow(parts, gap=GAP, width=width, indent=" " * LABEL_WIDTH)
        bar = progress_bar(view.fraction, bar_width, glyphs)
        return [Text.assemble(_label(unit), steps, "  ", bar, (f"  {view.fraction:4.0%}", "bold"), GAP, left)]


@dataclass(frozen=True)
class PlainLine:
    """Renders the current state of a run as one line for a log."""

    view: RunView

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        view, glyphs = self.view, glyphs_for(options)
        unit, done, budget = view.position
        parts = [Text(f"{unit.removesuffix('s')} {done}/{budget} {view.fraction:.0%}")]
        for label, parts_of in (("return", _return_parts), ("eval", _eval_parts)):
            for behavior in view.behaviors:
                if found := parts_of(view, behavior, glyphs):
                    parts.append(Text.assemble(f"{label} ", found[0]))
                    parts.extend(found[1:] if label == "return" else found[1:1])
        for behavior in view.behaviors:
            parts.extend(_health_parts(view, behavior, glyphs, marks_normal=False))
            # A loop of the user's own has no returns that would tell how it goes.
            parts.extend([] if view.header.num_lanes else _loss_parts(view, behavior, options.max_width))
        parts.extend(_time_parts(view)[:2])
        if view.seconds_left is not None:
            parts.append(Text(f"{duration(view.seconds_left)} left"))
        yield Text("  ").join(parts)


@dataclass(frozen=True)
class ClosingLines:
    """Renders how the run ended and the next commands."""

    summary: RunSummary

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        summary, glyphs = self.summary, glyphs_for(options)
        ending = f"{ENDINGS[summary.state]} {duration(summary.seconds)}"
        parts = [Text(ending, ENDING_STYLES[summary.state])]
        if summary.state != "finished":
            is_of_updates = summary.updates is not None and not summary.env_steps
            parts.append(Text(f"update {summary.updates}" if is_of_updates else f"step {grouped(summary.env_steps)}"))
        if summary.best_eval is not None:
            where = "" if summary.best_step is None else f" @ {short_count(summary.best_step)}"
            episodes = plural(summary.num_eval_episodes, "episode")
            parts.append(
                Text(f"best eval {measured(summary.best_eval)}{where}, judged on the {episodes} that chose it")
            )
        if summary.num_faults:
            parts.append(Text(plural(summary.num_faults, "environment fault"), "yellow"))
        if summary.last_checkpoint is not None:
            parts.append(Text(f"checkpoint {outside_text(summary.last_checkpoint, options.encoding)}"))
        yield from flow(parts, gap=f" {glyphs.dot} ", width=options.max_width)
        if summary.is_mid_update:
            yield Text(
                "the steps of the update that was on are in the checkpoint; a resume completes and counts it", "dim"
            )
        yield from self._next_lines(options)

    def _next_lines(self, options: ConsoleOptions) -> Iterator[Text]:
        commands = [
            (outside_text(command, options.encoding), outside_text(comment, options.encoding))
            for command, comment in self.summary.next_commands
        ]
        longest = max((len(command) for command, _ in commands), default=0)
        for index, (command, comment) in enumerate(commands):
            line = Text.assemble(("next:  " if index == 0 else "       "), (command, "cyan"))
            remark = Text(" " * (longest - len(command) + 3) + comment, "dim")
            # A command must stay whole to be copied; the remark gives way.
            yield line + remark if comment and line.cell_len + remark.cell_len <= options.max_width else line


def render_snapshot(
    rows: Iterable[tuple[int, Mapping[str, float]]], header: RunHeader, summary: RunSummary | None = None
) -> Group:
    """Renders a run from its recorded rows, as the terminal would show it after the last one."""
    view = RunView(header)
    for step, row in rows:
        view.add(step, row, seconds=row.get("time/total_seconds", 0.0))
    block = (HeaderLines(header), LiveBlock(view))
    return Group(*block) if summary is None else Group(*block, ClosingLines(summary))


def _label(text: str) -> tuple[str, str]:
    return f" {text:<{LABEL_WIDTH - 1}}", "dim"


def _curve_parts(behavior: BehaviorView, mean: float, std: float | None, curve: Curve, glyphs: Glyphs) -> list[Text]:
    """Returns the mean, beside the name if there are several behaviours, and the best so far."""
    tail = "" if std is None else f" {glyphs.plus_minus} {spread(std)}"
    name = f"{behavior.name} " if behavior.name else ""
    parts = [Text.assemble(name, (measured(mean), "bold"), tail)]
    return (
        parts
        if curve.best is None
        else [*parts, Text(f"best {measured(curve.best[0])} @ {short_count(curve.best[1])}")]
    )


def _return_parts(view: RunView, behavior: BehaviorView, glyphs: Glyphs) -> list[Text]:
    values, prefix = view.values, behavior.prefix
    if not view.header.num_lanes:
        return []
    if (mean := values.get(f"{prefix}rollout/ep_rew_mean")) is not None:
        parts = _curve_parts(behavior, mean, values.get(f"{prefix}rollout/ep_rew_std"), behavior.returns, glyphs)
    else:
        name = f"{behavior.name} " if behavior.name else ""
        parts = [Text(f"{name}no episode has ended yet", "dim")]
    if (length := values.get(f"{prefix}rollout/ep_len_mean")) is not None:
        parts.append(Text(f"length {measured(length)}"))
    parts += _success_parts(values.get(f"{prefix}rollout/success_rate"))
    if not behavior.name and (episodes := values.get(EPISODES)):
        parts.append(Text(f"{grouped(int(episodes))} {'episode' if episodes == 1 else 'episodes'}"))
    return parts


def _eval_parts(view: RunView, behavior: BehaviorView, glyphs: Glyphs) -> list[Text]:
    values, prefix = view.values, behavior.prefix
    if (mean := values.get(f"{prefix}eval/mean_reward")) is None:
        return []
    parts = _curve_parts(behavior, mean, values.get(f"{prefix}eval/std_reward"), behavior.evals, glyphs)
    if (length := values.get(f"{prefix}eval/mean_ep_length")) is not None:
        parts.append(Text(f"length {measured(length)}"))
    return parts + _success_parts(values.get(f"{prefix}eval/success_rate"))


def _success_parts(rate: float | None) -> list[Text]:
    return [] if rate is None else [Text(f"success {rate:.0%}")]


def _health_parts(view: RunView, behavior: BehaviorView, glyphs: Glyphs, *, marks_normal: bool = True) -> list[Text]:
    found = view.health(behavior)
    parts = [_health_part(health, glyphs) for health in found]
    if parts and behavior.name:
        parts[0] = Text.assemble(f"{behavior.name} ", parts[0])
    judged = [health.is_normal for health in found if health.is_normal is not None]
    if marks_normal and judged and all(judged):
        parts.append(Text(f"{glyphs.normal} in range", "green"))
    return parts


def _health_part(health: Health, glyphs: Glyphs) -> Text:
    part = Text(f"{health.label} {health.shown:.{health.digits}f}")
    if health.usual is not None and not health.is_normal:
        low, high = health.usual
        bound = f"above {high:g}" if health.shown > high else f"below {low:g}"
        part.append(f" {glyphs.warning} {bound}", "bold yellow")
    return part


def _loss_parts(view: RunView, behavior: BehaviorView, width: int) -> list[Text]:
    """Returns losses and the learning rate, as many as fit on one line."""
    values, prefix = view.values, f"{behavior.prefix}train/"
    names = [name for name in values if name.startswith(prefix) and name.endswith("loss")]
    parts = [
        Text(f"{name.removeprefix(prefix).removesuffix('_loss').replace('loss', 'total')} {values[name]:.3g}")
        for name in names
    ]
    if (rate := values.get(f"{prefix}learning_rate")) is not None:
        parts.insert(0, Text(f"lr {rate:.2g}"))
    if parts and behavior.name:
        parts[0] = Text.assemble(f"{behavior.name} ", parts[0])
    room = width - LABEL_WIDTH + len(GAP)
    return [part for part in parts if (room := room - part.cell_len - len(GAP)) >= 0]


def _time_parts(view: RunView) -> list[Text]:
    values, parts = view.values, []
    if (seconds := values.get("time/total_seconds")) is not None:
        parts.append(Text(f"elapsed {duration(seconds)}"))
    if not (fps := values.get("time/fps")):
        return parts  # without environment steps there are no shares of their time
    parts.append(Text(f"{grouped(round(fps))} steps/s"))
    shares = {name: values.get(f"time/{name}_fraction") for name in TIME_SHARES}
    return [*parts, *(Text(f"{name} {share:.0%}") for name, share in shares.items() if share is not None)]
