"""The command line: exit statuses, one clean error line, flags made from the table."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from types import ModuleType

import msgspec
import pytest

from dgpp.cli import main as cli
from dgpp.cli.run import prepare_environment
from dgpp.cluster.messages import Answer, Examine, Finding, Look
from dgpp.cluster.place import Place
from dgpp.cluster.record import State
from dgpp.config.flags import flag_names, flagged
from dgpp.config.resolve import resolve
from dgpp.config.site import parse_site
from dgpp.config.version import stamped, version
from dgpp.errors import ConfigError, WorldFailedError

SITE = ("DGPP_", "HF_")


@pytest.fixture(autouse=True)
def _clean_site(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith(SITE):
            monkeypatch.delenv(name)
    (tmp_path / "empty.env").write_text("")
    monkeypatch.setenv("DGPP_ENV_FILE", str(tmp_path / "empty.env"))
    monkeypatch.setenv("DGPP_LOG_LEVEL", "info")


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "demo.json"
    path.write_text(json.dumps({"model": "dgpp/demo", "world_size": 1}))
    return str(path)


@pytest.fixture
def launched(monkeypatch):
    """Replaces the world: what `serve` and `memory_plan` were called with."""
    calls = []
    launch, served = ModuleType("actors.launch"), ModuleType("actors.serve")

    def serve(settings, *, log_json, rank):
        calls.append(("serve" if rank is None else f"rank {rank}", settings, log_json))
        return 0

    def memory_plan(settings):
        calls.append(("plan", settings, None))
        return 1

    served.serve, launch.memory_plan = serve, memory_plan
    import actors

    for name, module in (("launch", launch), ("serve", served)):
        monkeypatch.setitem(sys.modules, f"actors.{name}", module)
        monkeypatch.setattr(actors, name, module, raising=False)
    return calls


def test_one_rank_of_a_world(config, launched, capsys):
    world = ["run", config, "--world-size", "2"]
    assert cli.main([*world, "--rank", "1"]) == 0
    assert cli.main(["run", config, "--rank", "0"]) == 0
    assert [call for call, _, _ in launched] == ["rank 1", "rank 0"]
    for rank in ("2", "-1"):
        assert cli.main([*world, "--rank", rank]) == 1
        assert f"--rank: expected 0..1, got {rank}" in capsys.readouterr().err


def test_run_with_flags(config, launched):
    arguments = [
        "run",
        config,
        "--kv-capacity",
        "512",
        "--port",
        "9000",
        "--set",
        "engine.kv_capacity=256",
        "--set",
        "engine.queue_limit=2",
        "--no-mtp",
        "--log-json",
        "--temperature",
        "0",
        "--model-alias",
        "123",
        "--no-eos",
    ]
    assert cli.main(arguments) == 0
    [(call, settings, log_json)] = launched
    assert (call, log_json) == ("serve", True)
    assert settings.engine.kv_capacity == 512
    assert settings.engine.queue_limit == 2
    assert settings.engine.model_alias == "123"
    assert settings.engine.no_eos is True
    assert settings.http.port == 9000
    assert settings.sampling.temperature == 0.0


def test_a_site_of_other_machines_does_not_stop_run(config, launched, tmp_path):
    lines = "DGPP_FABRIC_PORT=1\nDGPP_LOG_DIR=/l\nDGPP_SSH_USER=me\nDGPP_MLOCK=off\n"
    (tmp_path / "empty.env").write_text(lines)
    assert cli.main(["run", config]) == 0
    assert launched[0][1].ports.fabric == 1


def test_a_site_of_other_nodes_is_refused(config, launched, monkeypatch, capsys):
    monkeypatch.setenv("DGPP_NODES", "gpu-box-7")
    assert cli.main(["run", config]) == 1
    assert "not supported yet: nodes (dgpp run serves this host alone" in capsys.readouterr().err
    assert launched == []


def test_memory_plan(config, launched):
    assert cli.main(["run", config, "--memory-plan"]) == 1
    assert launched[0][0] == "plan"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--kv-capacity", "x"],
            '--kv-capacity: engine.kv_capacity: expected an integer in 1..1099511627776, got "x"',
        ),
        (["--kv-capacity"], "Option '--kv-capacity' requires an argument."),
        (["--kv-capacty", "3"], "No such option: --kv-capacty"),
        (["--set", "engine.mpt=1"], "--set: engine.mpt: unknown key (did you mean engine.mtp?)"),
        (["--mtp"], "not supported yet: engine.mtp"),
        (["--rank", "1"], "--rank: expected 0..0, got 1"),
        (["--release", "9.9"], "release: 9.9 is asked for, this is"),
        (["--set", 'nodes=["gpu-box-7"]', "--set", "world_size=1"], "not supported yet: nodes"),
        (["--set", "engine.l2_prefetch=false"], "not supported yet: engine.l2_prefetch"),
        (
            ["--default-chat-template-kwargs", '{"enable_thinking": 3}'],
            "engine.default_chat_template_kwargs.enable_thinking: expected true or false, got 3",
        ),
        (["--log-level", "loud"], "'loud'"),
        (["--mtp", "--no-mtp"], "--mtp and --no-mtp: both set engine.mtp"),
        (["--http-port", "0"], "--http-port: http.port: expected an integer in 1..65535, got 0"),
        (["extra"], "unexpected extra argument"),
    ],
)
def test_run_errors_are_one_line_and_status_1(config, launched, capsys, arguments, message):
    assert cli.main(["run", config, *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith("dgpp: error: ")
    assert message in error
    assert error.count("\n") == 1
    assert launched == []


@pytest.mark.parametrize("arguments", [["nope"], ["--nope"], ["run"], ["inspect"]])
def test_usage_errors_are_status_1(arguments, capsys):
    assert cli.main(arguments) == 1
    assert re.fullmatch(r"dgpp: error: .+\n", capsys.readouterr().err)


def test_missing_file_is_named(capsys):
    assert cli.main(["run", "/nowhere.json"]) == 1
    assert capsys.readouterr().err == (
        "dgpp: error: cluster config /nowhere.json: cannot be read: No such file or directory\n"
    )


def test_a_named_error_has_its_own_status(config, launched, monkeypatch, capsys):
    def fail(settings, *, log_json, rank):
        raise WorldFailedError("engine[0] died")

    monkeypatch.setattr(sys.modules["actors.serve"], "serve", fail)
    assert cli.main(["run", config]) == 2
    assert capsys.readouterr().err == "dgpp: error: engine[0] died\n"


def test_bare_command_prints_help(capsys):
    assert cli.main([]) == 1
    captured = capsys.readouterr()
    assert "Serve a deployment over HTTP." in captured.out + captured.err
    assert "dgpp: error" not in captured.err


def test_resolve_prints_what_run_accepts(config, capsys, tmp_path, monkeypatch):
    assert cli.main(["resolve", config, "--decode-graph", "--mtp", "--mtp-depth", "3"]) == 0
    text = capsys.readouterr().out
    document = json.loads(text)
    assert document["engine"]["mtp_depth"] == 3
    assert document["nodes"] == ["localhost"]
    (tmp_path / "resolved.json").write_text(text)
    assert cli.main(["resolve", str(tmp_path / "resolved.json")]) == 0
    assert capsys.readouterr().out == text
    # Without a name it is the site's usual one, as for the other commands.
    assert cli.main(["resolve"]) == 1
    assert "DGPP_CLUSTER_CONFIG names none" in capsys.readouterr().err
    monkeypatch.setenv("DGPP_CLUSTER_CONFIG", str(tmp_path / "resolved.json"))
    assert cli.main(["resolve"]) == 0
    assert capsys.readouterr().out == text


def test_run_help_lists_every_flag(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    assert cli.main(["run", "--help"]) == 0
    text = capsys.readouterr().out
    for field in flagged():
        assert flag_names(field)[0] in text, field.path
    assert "Engine: capacity" in text
    assert "default 8192" in text


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert re.fullmatch(r"0\.1\.0(\+g[0-9a-f]{12}(\.dirty)?)?\n", capsys.readouterr().out)
    assert version().startswith("0.1.0")


def test_a_terminals_ctrl_c_does_not_reach_what_tells_the_version(tmp_path, monkeypatch):
    """Cut short it would make this another version, which no other node has."""
    git = tmp_path / "git"
    git.write_text(
        "#!/bin/sh\nread -r _ _ _ _ group _ </proc/$$/stat\n"
        '[ "$group" = $$ ] && echo 0123456789ab\n'
    )
    git.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("dgpp.config.version.checkout_root", lambda: tmp_path)
    assert version.__wrapped__().endswith("+g0123456789ab")


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        ("0123456789ab\n", "0.1.0+g0123456789ab"),
        ("0123456789ab-dirty\n", "0.1.0+g0123456789ab.dirty"),
        ("", "0.1.0"),
    ],
)
def test_version_stamp(described, expected):
    assert stamped("0.1.0", described) == expected


def test_environment_of_children():
    site = parse_site({"HF_HUB_CACHE": "/hub", "DGPP_ROCE_DEVICES": "r0"}, "env")
    settings = resolve({"model": "m"}, "f", site=site)
    environ = {"HF_HUB_CACHE": "/mine", "OPENBLAS_CORETYPE": "Haswell", "DGPP_LOG_LEVEL": "DEBUG"}
    prepare_environment(environ, settings, None)
    assert environ == {
        "HF_HUB_CACHE": "/mine",
        "DGPP_ROCE_DEVICES": "r0",
        "DGPP_LOG_LEVEL": "debug",
    }
    prepare_environment(environ, settings, "error")
    assert environ["DGPP_LOG_LEVEL"] == "error"
    with pytest.raises(ConfigError, match="DGPP_LOG_LEVEL: expected one of debug, info"):
        prepare_environment({"DGPP_LOG_LEVEL": "loud"}, settings, None)


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from dgpp.cli.main import main; main(['--help']); "
        "print([m for m in ('numpy', 'numba', 'aiohttp', 'msgspec', 'asyncio') "
        "if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_agent_of_a_node_waits_for_nothing_that_it_does_not_need(tmp_path):
    """It starts once for every node and command: neither options nor arrays are its business."""
    place = Place(str(tmp_path / "log"), str(tmp_path / "stage"), "d")
    examine = Examine(place, 1, 2, "scripted", False, (), (), "dgpp/demo", "", ())
    requests = [msgspec.json.encode(request) + b"\n" for request in (Look(place, 1), examine)]
    code = (
        "import sys; from dgpp.cli.entry import main; status = main(); "
        "sys.stderr.write(str([m for m in ('typer', 'numpy', 'numba', 'asyncio') "
        "if m in sys.modules])); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "agent"],
        input=b"".join(requests),
        capture_output=True,
        check=True,
        timeout=60,
    )
    looked, found = (msgspec.json.decode(line, type=Answer) for line in done.stdout.splitlines())
    assert looked.state is State.ABSENT
    assert Finding("ok", "engine.backend scripted is scripted") in found.findings
    assert done.stderr.decode() == "[]"


@pytest.mark.parametrize(
    ("loads", "status"),
    [
        ("signal.raise_signal(signal.SIGINT)", -signal.SIGINT),
        ("import_module(name)", 130),
    ],
    ids=["while it loads", "afterwards"],
)
def test_ctrl_c_ends_a_command_that_loads_and_interrupts_one_that_runs(loads, status):
    """Amid an import an exception may be lost, with the lock of imports."""
    code = (
        "import signal, sys, dgpp.cli.lazy as lazy; from importlib import import_module\n"
        f"lazy.import_module = lambda name: {loads}\n"
        "import dgpp.cli.inspect_checkpoint as command\n"
        "@command.app.command()\n"
        "def stop(): signal.raise_signal(signal.SIGINT)\n"
        "command.app.registered_commands = command.app.registered_commands[-1:]\n"
        "sys.argv = ['dgpp', 'inspect']\n"
        "from dgpp.cli.entry import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


LOST_AMID_AN_IMPORT = """
import os, signal, sys
sys.argv = ["dgpp", "--version"]

def profile(frame, event, arg):
    if event == "c_return" and frame.f_code.co_name == "cb" and arg.__name__ == "acquire_lock":
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGINT)

sys.setprofile(profile)
from dgpp.cli.entry import main
sys.exit(main())
"""


def test_ctrl_c_that_python_loses_before_a_command_begins_ends_it_too():
    """No exception leaves the callback of a module's lock, and the lock of imports stays held."""
    done = subprocess.run(
        [sys.executable, "-c", LOST_AMID_AN_IMPORT], capture_output=True, check=False, timeout=60
    )
    assert b"Exception ignored in" in done.stderr
    assert (done.returncode, done.stdout) == (-signal.SIGINT, b"")


def test_completion_knows_commands_and_flags():
    def complete(words):
        environ = os.environ | {
            "_DGPP_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        }
        done = subprocess.run(
            [sys.executable, "-m", "dgpp"],
            capture_output=True,
            text=True,
            env=environ,
            timeout=60,
            check=False,
        )
        return done.stdout.split()

    assert "resolve" in complete("dgpp res")
    assert "--kv-capacity" in complete("dgpp run --kv-c")


@pytest.mark.bench
def test_help_is_instant():
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "dgpp", "--help"], capture_output=True, check=True)
    print(f"dgpp --help: {time.perf_counter() - started:.3f} s")
