"""Converts the state of checkpoints of 0.1, in which one behaviour and several were saved differently.

In 0.1 a run of lanes had the parts of its one learner at the top, and a run of agents had all policies in one part, the
state of its environment in another, and updates that were computed and not published. Now every learner has its parts
below `learners`, and the source has the actor's unfinished commands.
"""

from __future__ import annotations

from collections.abc import Sequence

from quintain.services.checkpoints.state_files import SUBTREES
from quintain.typing import State

_OF_LEARNER = {"training": ("policy", "algorithm", "store", "events"), "records": ("episodes", "firings", "guard")}
_LEARNERS = {"training": "learners", "records": "learner_records"}
_UPDATE, _PUBLISH = 2, 3
"""Indices of these stages in a cycle."""


def is_old(training: State) -> bool:
    """Whether a state is of 0.1."""
    return "policy" in training


def weights_in(training: State, behavior: str) -> State:
    """Returns the state of a behaviour's policy in a state of any version; for lanes the only one."""
    if not is_old(training):
        learners: State = training["learners"]
        found: State = learners[behavior if behavior in learners else next(iter(learners))]["policy"]
        return found
    if "learners" not in training:
        lanes: State = training["policy"]
        return lanes
    # A module's name has no dot in it, a behaviour's may.
    prefix = f"members.{behavior.replace('.', '%2E')}."
    return {name.removeprefix(prefix): value for name, value in training["policy"].items() if name.startswith(prefix)}


def upgraded(state: State, behaviors: Sequence[str]) -> State:
    """Returns a state in the current format, for a run with these behaviours."""
    if not is_old(state["training"]):
        return state
    if "learners" in state["training"]:
        return _of_agents(state)
    [behavior] = behaviors
    return {kind: _of_lanes(state[kind], kind, behavior) for kind in SUBTREES}


def _of_lanes(tree: State, kind: str, behavior: str) -> State:
    moved = {name: tree[name] for name in _OF_LEARNER[kind] if name in tree}
    new = {name: value for name, value in tree.items() if name not in moved}
    new[_LEARNERS[kind]] = {behavior: moved}
    if "source" in new:
        new["source"] = _source_of_lanes(new["source"], behavior)
    if kind == "training" and "progress" in new:
        new["turn"] = {"behavior": behavior}
    if "ranks" in new:
        new["ranks"] = {rank: _of_lanes(own, kind, behavior) for rank, own in new["ranks"].items()}
    return new


def _source_of_lanes(source: State, behavior: str) -> State:
    ahead = source["ahead"]
    fills = [each for each in ahead["commands"] if each["do"] == "fill"]
    reports = ahead["reports"]
    full = [_report(behavior, each) for each in (reports[: len(reports) - len(fills)] if fills else reports)]
    new: State = {"commands": [_command(each) for each in ahead["commands"]], "reports": full}
    if fills:
        new["partial"] = {**_report(behavior, reports[len(reports) - len(fills)]), "filled": {}}
        new["lent"] = {behavior: [each["arguments"] for each in fills]}
    return {"collector": source["collector"], "versions": {behavior: source["version"]}, "ahead": new}


def _command(command: State) -> State:
    return {"do": "fill", "arguments": {}} if command["do"] == "fill" else command


def _report(behavior: str, report: State) -> State:
    filled = {behavior: {"version": report["version"], "metrics": report["metrics"]}}
    return {"filled": filled, "returns": {behavior: report["returns"]}, "lengths": {behavior: report["lengths"]}}


def _of_agents(state: State) -> State:
    training, records = state["training"], state["records"]
    learners, old = {}, training["learners"]
    progress, turn = dict(training["progress"]), next(iter(old))
    ahead: State = {"commands": [], "reports": []}
    lent: dict[str, list[State]] = {}
    for name, parts in old.items():
        own, version = dict(parts["progress"]), training["source"]["versions"][name]
        if own["stage"] or own["is_closing"]:
            turn = name
            progress |= {"stage": own["stage"], "is_closing": own["is_closing"]}
        flight = parts.get("flight", {"is_begun": False})
        if flight["is_begun"]:
            if len(old) > 1:
                raise ValueError("it was stopped during an update of one of several behaviours, in threads, by 0.1")
            # Its weights are those after the update.
            own["stage"] = _PUBLISH if own["stage"] == _UPDATE else own["stage"]
        blocks = parts["store"]["blocks"]
        for number, block in enumerate(blocks.values()):
            if block["is_committed"] and not block["is_taken"]:
                filled = {"version": max(0, version - 1), "metrics": {"rollout/buffer_utilisation": 1.0}}
                ahead["reports"] = [*ahead["reports"], {"filled": {name: filled}, "returns": {}, "lengths": {}}]
            if block["is_open"] and len(blocks) > 1:
                acting = flight.get("acting", weights_in(training, name))
                lent.setdefault(name, []).append({"block": number, "version": version, "weights": acting})
        learners[name] = {
            "policy": weights_in(training, name),
            **{part: parts[part] for part in ("algorithm", "store", "events")},
        }
        if len(old) > 1:
            learners[name]["progress"] = {**own, "stage": 0, "is_closing": False}
        else:
            progress = own
    if lent:
        nothing: State = {"filled": {}, "returns": {}, "lengths": {}}
        commands = [{"do": "fill", "arguments": {}}] if all(name in lent for name in old) else []
        ahead |= {"commands": commands, "partial": nothing, "lent": lent}
    source = {"collector": training["source"], "versions": training["source"]["versions"], "ahead": ahead}
    kept = (*_OF_LEARNER["records"], *(("records",) if len(old) > 1 else ()))
    return {
        "training": {
            "progress": progress,
            "turn": {"behavior": turn},
            "learners": learners,
            "source": source,
            "curriculum": training["curriculum"],
            "global_streams": training["global_streams"],
        },
        "records": {
            "records": records["records"],
            "stats": records["stats"],
            "learner_records": {
                name: {part: parts[part] for part in kept} for name, parts in records["learner_records"].items()
            },
        },
    }
