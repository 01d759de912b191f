"""Rules that keep files from becoming code, and the process from waiting or guessing, read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source import called_name, files, place, tree_of

UNSAFE_MODULES = frozenset({"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"})
UNSAFE_CALLS = frozenset({"eval", "exec", "compile", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "torch.load",
                          "os.system", "os.popen", "__import__"})  # fmt: skip
SENT_CODE = "services/processes/sent_code.py"
"""The one module that may pack and unpack code: a learner packs users' callables for children that it starts."""
SANDBOX = "text/scenarios/code_runner.py"
"""The one module that may execute a text: the main script of a process that has given up all rights before."""
UNPACKING = {
    "unpack_code": {"envs/hosts/recipes.py", "runs/acting.py", "runs/ranks/follow.py", "runs/sent_parts.py"},
    "adopt_parts": {"runs/ranks/follow.py", "runs/ranks/ray_rank.py", "runs/sweeps/child.py"},
    "Recipe.from_json": {"envs/hosts/worker_process.py", "runs/acting.py", "runs/ranks/follow.py"},
    "ActingPlan.from_json": {"runs/hosted_collectors.py"},
    "HostedCollectors": {"runs/collector_process.py", "runs/rollout_actor.py"},
}
"""Modules that may call these: main functions of children, and what they call."""
RECORD_STAMPS = frozenset({"services/reporting/event_log.py", "behaviors/model_checkpoints.py",
                           "services/files/run_directory.py", "behaviors/timers_file.py"})  # fmt: skip
"""Modules that may ask for the time of day, because they write it into records."""
STATE_WRITERS = ("services/checkpoint", "services/state_files", "services/run_directory", "services/disk_reserve",
                 "services/model_checkpoints")  # fmt: skip
"""Modules in which a file must appear whole or not at all."""
QUEUES = frozenset({"Queue", "LifoQueue", "PriorityQueue", "SimpleQueue", "JoinableQueue"})
WAITING = frozenset({"get", "recv", "join"})


def problems(tree: ast.AST, module: str = "") -> Iterator[tuple[ast.AST, str]]:
    """Yields what breaks a rule, with the node that does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            for name in names:
                if name.partition(".")[0] in UNSAFE_MODULES and (module, name) != (SENT_CODE, "cloudpickle"):
                    yield node, f"imports {name}"
        elif isinstance(node, ast.Call):
            yield from ((node, what) for what in _call_problems(node, module))
        elif isinstance(node, ast.ExceptHandler) and node.type is None:
            yield node, "bare except"
        elif isinstance(node, ast.ExceptHandler) and all(isinstance(each, ast.Pass) for each in node.body):
            if ast.unparse(node.type or ast.Name("")) in {"Exception", "BaseException"}:
                yield node, "swallows every exception"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "0.0.0.0" in node.value:
            yield node, "listens on every interface"


def _call_problems(call: ast.Call, module: str) -> Iterator[str]:
    name = called_name(call)
    keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    last = name.rpartition(".")[2]
    if name in UNSAFE_CALLS and (module, name) != (SANDBOX, "exec"):
        yield f"calls {name}"
    if keywords.get("allow_pickle") == "True":
        yield "loads pickled arrays"
    if keywords.get("shell") == "True":
        yield "runs a shell"
    if keywords.get("verify") == "False":
        yield "does not verify the other side"
    if keywords.get("weights_only") == "False":
        yield "loads more than weights"
    if name == "time.time" and module not in RECORD_STAMPS:
        yield "reads the time of day"
    if last in QUEUES and not (call.args or "maxsize" in keywords):
        yield "makes a queue without a bound"
    if last in WAITING and not call.args and not keywords and isinstance(call.func, ast.Attribute):
        yield f"waits for {name} without a deadline"
    if name == "open" and _mode(call, keywords).startswith(("w", "x")) and module.startswith(STATE_WRITERS):
        yield "writes a state file in place"


def _mode(call: ast.Call, keywords: dict[str | None, str]) -> str:
    mode = call.args[1] if len(call.args) > 1 else None
    return str(mode.value) if isinstance(mode, ast.Constant) else keywords.get("mode", "r").strip("'\"")


@pytest.mark.parametrize("path", files(), ids=lambda path: "/".join(path.parts[-2:]))
def test_the_rules_hold(path: Path) -> None:
    module = "/".join(path.parts[path.parts.index("quintain") + 1 :])
    found = [f"{place(path, node)}: {what}" for node, what in problems(tree_of(path), module)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from cloudpickle import dumps",
        "eval('1')",
        "yaml.load(text)",
        "torch.load(path)",
        "np.load(path, allow_pickle=True)",
        "subprocess.run(line, shell=True)",
        "requests.get(url, verify=False)",
        "server.bind('0.0.0.0')",
        "time.time()",
        "queue.Queue()",
        "thread.join()",
        "pipe.recv()",
        "try:\n    f()\nexcept:\n    raise",
        "try:\n    f()\nexcept Exception:\n    pass",
    ],
)
def test_each_rule_sees_what_it_forbids(line: str) -> None:
    assert len(list(problems(ast.parse(line)))) == 1


@pytest.mark.parametrize(
    "line",
    ["yaml.safe_load(text)", "queue.Queue(maxsize=4)", "thread.join(timeout=2)", "' '.join(words)", "d.get('k')",
     "time.monotonic()", "try:\n    f()\nexcept OSError:\n    pass", "policy.eval()", "open(path, 'rb')"],
)  # fmt: skip
def test_no_rule_sees_what_is_allowed(line: str) -> None:
    assert not list(problems(ast.parse(line), "services/checkpoints/manager.py"))


@pytest.mark.parametrize("name", UNPACKING)
def test_only_children_unpack_code(name: str) -> None:
    found = {
        "/".join(path.parts[path.parts.index("quintain") + 1 :])
        for path in files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and called_name(node) == name
    }
    assert found == UNPACKING[name]


def test_code_is_packed_in_one_module() -> None:
    assert not list(problems(ast.parse("import cloudpickle"), SENT_CODE))
    assert list(problems(ast.parse("import pickle"), SENT_CODE))
    assert list(problems(ast.parse("import cloudpickle"), "envs/hosts/recipes.py"))


def test_a_state_file_is_never_written_in_place() -> None:
    assert list(problems(ast.parse("open(path, 'wb')"), "services/checkpoints/files.py"))
    assert not list(problems(ast.parse("open(path, 'wb')"), "cli/train.py"))
