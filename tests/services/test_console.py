"""The console says the same on every terminal, never breaks a line badly, and stays out of the way."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from quintain.services.reporting.console import ConsoleWriter
from quintain.services.reporting.console_layout import LiveBlock, render_snapshot
from quintain.services.reporting.console_text import UNICODE, sparkline
from quintain.services.reporting.console_view import Curve, RunView
from quintain.services.reporting.digits import duration, estimated, grouped, measured, short_count
from quintain.services.reporting.printable import escape_control_characters
from quintain.services.reporting.settings import ConsoleSettings
from quintain.services.reporting.writers import RunHeader, RunSummary, WriterGroup

HEADER = RunHeader("0.1.0", "ppo", "CartPole-v1", 8, "cpu", 2, 0, "runs/cartpole-ppo-1115-otter", 100_000)
ROW = {
    "rollout/ep_rew_mean": 412.6,
    "rollout/ep_rew_std": 31.2,
    "rollout/ep_len_mean": 412.6,
    "time/fps": 9800.4,
    "time/env_fraction": 0.44,
    "time/act_fraction": 0.21,
    "time/learn_fraction": 0.33,
    "time/other_fraction": 0.02,
    "train/approx_kl": 0.011,
    "train/clip_fraction": 0.14,
    "train/entropy": 0.55,
    "train/explained_variance": 0.81,
    "train/learning_rate": 3e-4,
    "train/policy_loss": -0.00123,
    "train/value_loss": 14.66,
    "time/episodes": 187.0,
    "time/total_seconds": 6.0,
}
SUMMARY = RunSummary(
    "finished",
    31.4,
    100_352,
    best_eval=500.0,
    best_step=98_304,
    num_eval_episodes=10,
    last_checkpoint="000012-step-98304",
    next_commands=[("quintain resume otter", "train on"), ("quintain eval otter --episodes 50", "look")],
)


class FakeClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class FakeTerminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class ClosedPipe(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "30")


def log_of(feed: Callable[[ConsoleWriter, FakeClock], None], every_seconds: float = 2.0) -> list[str]:
    stream, clock = io.StringIO(), FakeClock()
    feed(ConsoleWriter(ConsoleSettings(every_seconds=every_seconds), stream, clock=clock), clock)
    assert "\x1b" not in stream.getvalue()
    return stream.getvalue().splitlines()


def drawn(width: int, *, encoding: str = "utf-8", header: RunHeader = HEADER) -> list[str]:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    earlier = ROW | {"time/total_seconds": 3.0, "rollout/ep_rew_mean": 300.0}
    rows = [(30_720, earlier), (61_440, ROW)]
    Console(file=stream, width=width).print(render_snapshot(rows, header, SUMMARY))
    stream.flush()
    return stream.buffer.getvalue().decode(encoding).splitlines()  # type: ignore[attr-defined]  # a BytesIO


def test_the_picture_at_80_columns() -> None:
    lines = drawn(80)
    assert lines[0] == "quintain 0.1.0 · ppo · CartPole-v1 · 8 lanes · cpu (2 cores) · seed 0"
    assert lines[1] == "run runs/cartpole-ppo-1115-otter · Ctrl-C once saves and stops"
    assert lines[2] == lines[8] == "─" * 80
    assert lines[3].startswith(" steps   61 440 / 100 000  ━━━")
    # 30 720 steps in 3 s leave 38 560 / 10 240 = 3.8 s.
    assert lines[3].endswith("──   61%   4 s left")
    assert lines[4] == " return  412.6 ± 31   best 412.6 @ 61k   length 412.6   187 episodes   ▁█"
    assert lines[5] == " health  kl 0.011   clip 0.14   entropy 0.55   expl.var 0.81   ✓ in range"
    assert lines[6] == " loss    lr 0.0003   policy -0.00123   value 14.7"
    assert lines[7] == " time    elapsed 6 s   9 800 steps/s   env 44%   act 21%   learn 33%   other 2%"
    assert lines[9] == "done in 31 s · best eval 500.0 @ 98k, judged on the 10 episodes that chose it"
    assert lines[10] == "checkpoint 000012-step-98304"
    assert lines[11] == "next:  quintain resume otter               train on"
    assert lines[12] == "       quintain eval otter --episodes 50   look"


def test_every_behaviour_has_its_returns_and_health() -> None:
    header = replace(HEADER, behaviors=("Goalie", "Striker"), budget_env_steps=200_000)
    view = RunView(header)
    for step, mean in ((1000, 1.0), (2000, 3.0)):
        row = {"rollout/ep_rew_mean": mean, "rollout/ep_rew_std": 0.5, "train/approx_kl": 0.2}
        view.add(step, {f"Goalie/{name}": value for name, value in row.items()}, step / 1000)
    stream = io.StringIO()
    Console(file=stream, width=80).print(LiveBlock(view))
    assert [line.rstrip() for line in stream.getvalue().splitlines()[2:5]] == [
        " return  Goalie 3.0 ± 0.5   best 3.0 @ 2.0k   ▁█".rstrip(),
        "         Striker no episode has ended yet",
        " health  Goalie kl 0.200 ▲ above 0.03",
    ]


def test_a_curve_remembers_the_whole_run_in_bounded_memory() -> None:
    curve = Curve()
    for step in range(100_001):
        curve.add(step, float(step))
    assert curve.best == (100_000.0, 100_000)
    points = curve.points(10)
    # Tenths of a line from 0 to 100,000: their means are 5,000, 15,000, ...
    assert points == pytest.approx([5000 + 10_000 * tenth for tenth in range(10)], abs=200)
    assert len(curve.points(10**6)) < 2048
    assert sparkline(points, UNICODE) == "▁▂▃▃▄▅▆▆▇█"


def test_a_resumed_run_shows_what_was_before_it() -> None:
    history = [{"step": 1000, "rollout/ep_rew_mean": 500.0}, {"step": 2000, "eval/mean_reward": 7.0}]
    view = RunView(replace(HEADER, start_step=2000, history=history))
    view.add(3000, {"rollout/ep_rew_mean": 4.0}, 0.0)
    assert view.behaviors[0].returns.best == (500.0, 1000)
    assert view.behaviors[0].returns.points(9) == [500.0, 4.0]
    assert view.behaviors[0].evals.best == (7.0, 2000)


def test_a_narrower_terminal_gets_no_torn_frame() -> None:
    stream, clock = FakeTerminal(), FakeClock()
    console = ConsoleWriter(ConsoleSettings(), stream, clock=clock)
    console.open(HEADER)
    console.write(100, ROW)
    drawn_rows = stream.getvalue().count("\n") - 2  # without the header's; the last line has no newline
    console._console.width = 40
    clock.seconds = 1.0
    before = len(stream.getvalue())
    console.write(200, ROW)
    # Of the block's lines at 80 columns, the two rules, the bar and all others longer than 40 take two rows now.
    lengths = [80, 80, 67, 75, 49, 79, 80]
    assert len(lengths) == drawn_rows + 1
    ups = stream.getvalue()[before:].count("\x1b[1A")
    assert ups == drawn_rows + sum(length > 40 for length in lengths)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_every_line_fits_every_terminal(width: int, encoding: str) -> None:
    lines = drawn(width, encoding=encoding, header=replace(HEADER, env="Cœur-v1"))
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for part in ("seed 0", "412.6", "expl.var 0.81", "other 2%", "000012-step-98304"):
        assert part in text


def test_ascii_terminals_get_ascii() -> None:
    lines = drawn(80, encoding="ascii")
    assert lines[4] == " return  412.6 +/- 31   best 412.6 @ 61k   length 412.6   187 episodes   _@"
    assert lines[5].endswith("ok in range")


def test_a_value_outside_its_range_is_marked_with_its_bound() -> None:
    view = RunView(HEADER)
    view.add(1, ROW, 0.0)
    assert [(health.label, health.is_normal) for health in view.health()] == [
        ("kl", True),
        ("clip", True),
        ("entropy", None),
        ("expl.var", True),
    ]
    bad = {"train/approx_kl": 0.2, "train/clip_fraction": 0.6, "train/explained_variance": -0.5}
    # The entropy of a density may have any sign: no alarm, whatever it is.
    view.add(2, bad | {"train/entropy": -3.0}, 1.0)
    constant = RunView(HEADER)
    constant.add(2, bad | {"rollout/ep_rew_std": 0.0}, 1.0)
    assert [health.label for health in constant.health()] == ["kl", "clip"]
    stream = io.StringIO()
    Console(file=stream, width=120).print(LiveBlock(view))
    assert (
        " health  kl 0.200 ▲ above 0.03   clip 0.60 ▲ above 0.3   entropy -3.00   expl.var -0.50 ▲ below 0\n"
        in stream.getvalue()
    )


def test_a_value_is_judged_as_it_is_shown() -> None:
    view = RunView(HEADER)
    view.add(1, {"train/explained_variance": -0.004, "train/exploration": 0.25, "train/q_value": 7.0}, 0.0)
    stream = io.StringIO()
    Console(file=stream, width=120).print(LiveBlock(view))
    assert " health  expl.var 0.00   explore 0.25   q 7.00   ✓ in range\n" in stream.getvalue()
    view.add(2, {"train/explained_variance": -0.006}, 1.0)
    assert [health.is_normal for health in view.health()] == [False, None, None]


def test_the_log_of_a_loop_without_lanes_has_its_losses() -> None:
    def feed(console: ConsoleWriter, clock: FakeClock) -> None:
        console.open(replace(HEADER, num_lanes=0))
        console.write(100, {"train/loss": 0.25})

    assert "total 0.25" in log_of(feed)[-1]


def test_behaviours_that_only_the_environment_names_have_their_returns() -> None:
    view = RunView(HEADER)
    view.add(1, {"Walker/rollout/ep_rew_mean": 3.0, "Flyer/rollout/ep_rew_mean": 5.0, "time/episodes": 4.0}, 0.0)
    view.add(2, {"Walker/rollout/ep_rew_mean": 4.0}, 1.0)
    stream = io.StringIO()
    Console(file=stream, width=120).print(LiveBlock(view))
    assert " return  Flyer 5.0   best 5.0 @ 1\n         Walker 4.0   best 4.0 @ 2   ▁█\n" in stream.getvalue()
    # Each has the budget of the settings, and steps are counted over both.
    assert view.position == ("steps", 2, 2 * HEADER.budget_env_steps)
    assert view.fraction == 2 / (2 * HEADER.budget_env_steps)


def test_success_rates_stand_beside_returns() -> None:
    view = RunView(HEADER)
    rates = {"rollout/success_rate": 0.27, "eval/success_rate": 1.0}
    view.add(1, rates | {"rollout/ep_rew_mean": 3.0, "eval/mean_reward": 5.0}, 0.0)
    stream = io.StringIO()
    Console(file=stream, width=120).print(LiveBlock(view))
    assert " return  3.0   best 3.0 @ 1   success 27%\n" in stream.getvalue()
    assert " eval    5.0   best 5.0 @ 1   success 100%\n" in stream.getvalue()


def test_the_cursor_waits_at_the_left_where_an_echoed_ctrl_c_begins_no_row() -> None:
    stream, clock = FakeTerminal(), FakeClock()
    console = ConsoleWriter(ConsoleSettings(), stream, clock=clock)
    console.open(HEADER)
    console.write(100, ROW)
    assert stream.getvalue().endswith("\r")


def test_time_left_follows_the_recent_rate() -> None:
    view = RunView(replace(HEADER, budget_env_steps=10_000))
    view.add(100, {}, 0.0)
    assert view.seconds_left is None
    # A fast start of 100 steps/s for 10 s, then 10 steps/s for 100 s: only the slow part may count.
    for second in range(1, 11):
        view.add(100 + 100 * second, {}, float(second))
    for second in range(11, 111):
        view.add(1100 + 10 * (second - 10), {}, float(second))
    assert view.step == 2100
    assert view.seconds_left == pytest.approx((10_000 - 2100) / 10)


def test_best_is_the_highest_mean_and_where_it_was() -> None:
    view = RunView(HEADER)
    for step, mean in ((10, 1.0), (20, 5.0), (30, 5.0), (40, 2.0)):
        view.add(step, {"rollout/ep_rew_mean": mean}, step)
    assert view.behaviors[0].returns.best == (5.0, 20)
    assert view.behaviors[0].evals.best is None


def test_a_log_has_the_first_and_last_row_and_one_per_interval() -> None:
    def feed(console: ConsoleWriter, clock: FakeClock) -> None:
        console.open(HEADER)
        for second in range(8):
            clock.seconds = float(second)
            console.write(1000 * (second + 1), ROW)
        console.close(SUMMARY)

    lines = log_of(feed, every_seconds=3.0)
    assert [line.split()[1] for line in lines if line.startswith("step ")] == [
        "1000/100000",
        "4000/100000",
        "7000/100000",
        "8000/100000",
    ]
    assert lines[-3].startswith("done in 31 s")


def test_a_log_line_is_never_broken() -> None:
    def feed(console: ConsoleWriter, clock: FakeClock) -> None:
        console.open(HEADER)
        console.write(61_440, ROW | {"eval/mean_reward": 500.0, "eval/std_reward": 0.0})
        console.note("note: " + "long " * 100)

    lines = log_of(feed)
    assert len(lines) == 4
    assert lines[2] == (
        "step 61440/100000 61%  return 412.6 ± 31  best 412.6 @ 61k  length 412.6  187 episodes  eval 500.0 ± 0  "
        "kl 0.011  clip 0.14  entropy 0.55  expl.var 0.81  elapsed 6 s  9 800 steps/s"
    )


def test_the_last_row_is_not_printed_twice() -> None:
    def feed(console: ConsoleWriter, clock: FakeClock) -> None:
        console.open(HEADER)
        console.write(1000, ROW)
        console.close(SUMMARY)

    assert sum(line.startswith("step ") for line in log_of(feed)) == 1


def test_the_closing_line_says_how_often_environments_broke() -> None:
    def feed(console: ConsoleWriter, clock: FakeClock) -> None:
        console.open(HEADER)
        console.close(RunSummary("finished", 31.0, 5000, last_checkpoint="c1", num_faults=3))

    assert log_of(feed)[-1] == "done in 31 s · 3 environment faults · checkpoint c1"


def test_a_run_that_ends_before_its_first_row() -> None:
    def feed(console: ConsoleWriter, clock: FakeClock) -> None:
        console.open(replace(HEADER, run_directory=None, start_step=5000))
        console.close(RunSummary("stopped", 61.0, 5000))

    assert log_of(feed)[1:] == [
        "from step 5 000 · Ctrl-C once stops",
        "stopped after 1 min 01 s · step 5 000",
    ]


def test_a_run_without_environment_steps_ends_at_an_update() -> None:
    def feed(console: ConsoleWriter, clock: FakeClock) -> None:
        console.open(HEADER)
        console.write(0, {"time/total_seconds": 3.0, "time/env_fraction": 0.0, "time/fps": 0.0})
        console.close(RunSummary("stopped", 61.0, 0, updates=2))

    *_, row, ending = log_of(feed)
    assert "env" not in row
    assert ending == "stopped after 1 min 01 s · update 2"


def test_text_from_outside_cannot_move_the_cursor() -> None:
    def feed(console: ConsoleWriter, clock: FakeClock) -> None:
        console.open(replace(HEADER, env="Evil\x1b[2J\r[bold]-v1"))
        console.note("warning[W0501]: \x9b31mred\u202e\nsecond")

    lines = log_of(feed)
    assert r"Evil\x1b[2J\r[bold]-v1" in lines[0]
    assert lines[2] == r"warning[W0501]: \x9b31mred\u202e\nsecond"


def test_a_terminal_is_redrawn_at_most_eight_times_a_second() -> None:
    stream, clock = FakeTerminal(), FakeClock()
    console = ConsoleWriter(ConsoleSettings(every_seconds=1000.0), stream, clock=clock)
    console.open(HEADER)
    before = stream.getvalue().count(" steps ")
    for tick in range(101):
        clock.seconds = tick / 100
        console.write(100 * tick, ROW)
    assert stream.getvalue().count(" steps ") - before <= 9
    assert "10 000 / 100 000" not in stream.getvalue()[: stream.getvalue().rfind(" steps ")]
    console.close(SUMMARY)
    assert "10 000 / 100 000" in stream.getvalue()
    assert stream.getvalue().rstrip().endswith("look\x1b[0m")


@pytest.mark.parametrize(("name", "value"), [("CI", "true"), ("TERM", "dumb")])
def test_a_terminal_that_nobody_watches_gets_a_log(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    stream = FakeTerminal()
    console = ConsoleWriter(ConsoleSettings(every_seconds=1.0), stream)
    console.open(HEADER)
    console.write(10, ROW)
    assert "\x1b" not in stream.getvalue()
    assert "step 10/100000" in stream.getvalue()


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    def colours_of() -> bool:
        stream = FakeTerminal()
        console = ConsoleWriter(ConsoleSettings(every_seconds=1.0), stream)
        console.open(HEADER)
        console.close(SUMMARY)
        return "\x1b[36m" in stream.getvalue()

    assert colours_of()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colours_of()


def test_a_reader_that_has_gone_is_said_once_and_nothing_fails_afterwards(capfd: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", encoding="utf-8") as stream:
        group = WriterGroup([ConsoleWriter(ConsoleSettings(every_seconds=1e-9), stream)])
        group.open(HEADER)
        group.write(1, ROW)
        group.close(SUMMARY)
        print("what an environment prints", file=stream, flush=True)
    said = capfd.readouterr().err
    assert said.startswith("warning[W0811]: the reader of the console has gone; the run goes on without it")
    assert said.count("\n") == 1


def test_a_closed_pipe_does_not_end_the_process() -> None:
    group = WriterGroup([ConsoleWriter(ConsoleSettings(every_seconds=1e-9), ClosedPipe())])
    group.open(HEADER)
    group.write(1, ROW)
    group.close(SUMMARY)


def test_how_numbers_are_written() -> None:
    assert [grouped(999), grouped(1_000), grouped(61_440)] == ["999", "1 000", "61 440"]
    assert [short_count(512), short_count(1024), short_count(57_344), short_count(2.5e6)] == [
        "512",
        "1.0k",
        "57k",
        "2.5M",
    ]
    assert [measured(0.0), measured(-21.04), measured(0.01234), measured(54321.9)] == [
        "0.0",
        "-21.0",
        "0.0123",
        "54322",
    ]
    assert [measured(0.99999998), measured(0.9994)] == ["1.0", "0.999"]
    # Two episodes of a return near 0; ten whose returns differ by the rounding of float32 alone.
    assert estimated(-0.36, -11.3, 10.6) == ("0", "-11", "11")
    assert estimated(1.000000001, 0.999999991, 1.000000012) == ("1.0", "1.0", "1.0")
    assert [duration(59.6), duration(3599), duration(3600), duration(90_000)] == [
        "1 min 00 s",
        "59 min 59 s",
        "1 h 00 min",
        "1 d 01 h",
    ]


def test_printable_text_is_left_alone() -> None:
    assert escape_control_characters("CartPole-v1 ± œ 日本") == "CartPole-v1 ± œ 日本"
    assert escape_control_characters("\ud800\u2028") == r"\ud800\u2028"


def test_the_view_starts_where_the_run_does() -> None:
    view = RunView(replace(HEADER, start_step=25_000))
    assert math.isclose(view.fraction, 0.25)
