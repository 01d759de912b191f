"""Draws a run on the terminal: its header, the live block, one plain line, and the closing lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group
from rich.text import Text

from quintain.services.reporting.console_text import ASCII, UNICODE, Glyphs, flow, progress_bar
from quintain.services.reporting.console_view import Health, RunView
from quintain.services.reporting.digits import duration, grouped, measured, plural, short_count, spread
from quintain.services.reporting.printable import escape_control_characters, fit_encoding
from quintain.services.reporting.writers import RunHeader, RunSummary

MAX_WIDTH = 100
"""Lines longer than this are harder to read than a second line."""
LABEL_WIDTH = 9
MIN_BAR_WIDTH = 8
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
        if header.run_directory is None:
            where.append(Text("Ctrl-C once stops"))
        else:
            run = Text.assemble(
                "run ", (outside_text(header.shown_directory or header.run_directory, options.encoding), "cyan")
            )
            where = [run, *where, Text("Ctrl-C once saves and stops")]
        for parts in (what, where):
            yield from flow(parts, gap=f" {glyphs.dot} ", width=options.max_width)


@dataclass(frozen=True)
class LiveBlock:
    """Renders the current state of a run; drawn again whenever the view has changed."""

    view: RunView

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        glyphs = glyphs_for(options)
        width = min(options.max_width, MAX_WIDTH)
        yield Text(glyphs.rule * width, "dim")
        yield self._progress(width, glyphs)
        rows = {
            "return": _return_parts(self.view, glyphs),
            "eval": _eval_parts(self.view, glyphs),
            "health": [_health_part(health, glyphs) for health in self.view.health()],
            "time": _time_parts(self.view),
        }
        for label, parts in rows.items():
            if parts:
                labelled = [Text.assemble(_label(label), parts[0]), *parts[1:]]
                yield from flow(labelled, gap="   ", width=width, indent=" " * LABEL_WIDTH)
        yield Text(glyphs.rule * width, "dim")

    def _progress(self, width: int, glyphs: Glyphs) -> Text:
        view = self.view
        left = "" if view.seconds_left is None else f"   {duration(view.seconds_left)} left"
        unit, done, budget = view.position
        steps = f"{grouped(done)} / {grouped(budget or 0)}"
        bar_width = width - LABEL_WIDTH - len(steps) - len("  ") - len("  100%") - len(left)
        if bar_width < MIN_BAR_WIDTH:
            return Text.assemble(_label(unit), f"{steps}  {view.fraction:.0%}{left}")
        bar = progress_bar(view.fraction, bar_width, glyphs)
        return Text.assemble(_label(unit), steps, "  ", bar, (f"  {view.fraction:4.0%}", "bold"), left)


@dataclass(frozen=True)
class PlainLine:
    """Renders the current state of a run as one line for a log."""

    view: RunView

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        view, glyphs = self.view, glyphs_for(options)
        unit, done, budget = view.position
        parts = [Text(f"{unit.removesuffix('s')} {done}/{budget} {view.fraction:.0%}")]
        if returns := _return_parts(view, glyphs):
            parts.append(Text.assemble("return ", returns[0]))
            parts.extend(returns[1:])
        if evals := _eval_parts(view, glyphs):
            parts.append(Text.assemble("eval ", evals[0]))
        parts.extend(_health_part(health, glyphs, marks_normal=False) for health in view.health())
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
            parts.append(Text(f"step {grouped(summary.env_steps)}"))
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


def _mean_and_spread(mean: float, std: float | None, glyphs: Glyphs) -> Text:
    tail = "" if std is None else f" {glyphs.plus_minus} {spread(std)}"
    return Text.assemble((measured(mean), "bold"), tail)


def _best(best: tuple[float, int] | None) -> list[Text]:
    return [] if best is None else [Text(f"best {measured(best[0])} @ {short_count(best[1])}")]


def _return_parts(view: RunView, glyphs: Glyphs) -> list[Text]:
    values = view.values
    if not view.header.num_lanes:
        return []
    if (mean := values.get("rollout/ep_rew_mean")) is not None:
        parts = [_mean_and_spread(mean, values.get("rollout/ep_rew_std"), glyphs), *_best(view.best_return)]
    else:
        parts = [Text("no episode has ended yet", "dim")] if values else [Text("starting", "dim")]
    if (length := values.get("rollout/ep_len_mean")) is not None:
        parts.append(Text(f"length {measured(length)}"))
    if (fps := values.get("time/fps")) is not None:
        parts.append(Text(f"{grouped(round(fps))} steps/s"))
    return parts


def _eval_parts(view: RunView, glyphs: Glyphs) -> list[Text]:
    values = view.values
    if (mean := values.get("eval/mean_reward")) is None:
        return []
    parts = [_mean_and_spread(mean, values.get("eval/std_reward"), glyphs), *_best(view.best_eval)]
    if (length := values.get("eval/mean_ep_length")) is not None:
        parts.append(Text(f"length {measured(length)}"))
    return parts


def _health_part(health: Health, glyphs: Glyphs, *, marks_normal: bool = True) -> Text:
    digits = 3 if health.label == "kl" else 2
    part = Text(f"{health.label} {health.value:.{digits}f}")
    if health.is_normal is False:
        part.append(f" {glyphs.warning}", "bold yellow")
    elif health.is_normal and marks_normal:
        part.append(f" {glyphs.normal}", "green")
    return part


def _time_parts(view: RunView) -> list[Text]:
    return [
        Text(f"{name} {share:.0%}")
        for name in TIME_SHARES
        if (share := view.values.get(f"time/{name}_fraction")) is not None
    ]
