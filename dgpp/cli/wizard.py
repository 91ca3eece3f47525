"""The steps of `dgpp setup`, in order. Each does nothing where its outcome is there already."""

from __future__ import annotations

import getpass
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import typer

from dgpp.checkpoint.demo import DEMO_MODEL
from dgpp.cli.cluster import access_by, open_deployment, refuse_start, say
from dgpp.cli.fetch import fetch_models
from dgpp.cli.questions import Questions
from dgpp.cli.settings import (
    load_settings,
    load_site_settings,
    site_directories,
)
from dgpp.cluster.bring import bring, lets_in
from dgpp.cluster.condition import conditions
from dgpp.cluster.deployment import Deployment, reach
from dgpp.cluster.errors import ClusterError
from dgpp.cluster.fetch import Fetch
from dgpp.cluster.interruption import Interruption, raised
from dgpp.cluster.messages import Answer, NodeFacts, Survey
from dgpp.cluster.node import Node, RemoteNode, ask_all, try_all
from dgpp.cluster.record import State
from dgpp.cluster.site_plan import lane_values, own_deployment, suggested, world_size
from dgpp.cluster.sync import Peer, each, in_gb
from dgpp.cluster.up import Up, bring_up, require_fit, stopped_by_down
from dgpp.config.env_file import write_values
from dgpp.config.ports import url_of
from dgpp.config.resolve import SITE_DEFAULTS, site_whole
from dgpp.config.settings import Settings
from dgpp.config.site import find_env_file, parse_site
from dgpp.config.templates import templates, templates_folder
from dgpp.config.version import checkout_root, version
from dgpp.errors import ConfigError
from dgpp.net.roce import RoceDevice, usable

LOCAL = "localhost"
USUAL_HUB = "~/.cache/huggingface/hub"
OWN_FOLDER = "deployments"
YES_OR_NO = ("yes", "no")


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says; empty where it is silent. `ports` by their keys."""

    unattended: bool
    nodes: str
    ssh_user: str
    deployment: str
    hub_cache: str
    ports: dict[str, int]
    install: bool
    fetch: bool
    start: bool
    program: str
    ssh_config: str


def _node_list(answer: str) -> None:
    if not parse_site({"DGPP_NODES": answer}, "--nodes").DGPP_NODES:
        raise ConfigError("expected host names separated by spaces")


def _devices(answer: str, devices: Mapping[str, Sequence[RoceDevice]]) -> None:
    """Each is on every host of `devices`."""
    for name in parse_site({"DGPP_ROCE_DEVICES": answer}, "RoCE devices").DGPP_ROCE_DEVICES:
        for host, found in devices.items():
            there = [device.name for device in found]
            if name not in there:
                raise ConfigError(f"no {name} on {host}; there are {' '.join(there)}")


def _login(answer: str) -> None:
    parse_site({"DGPP_SSH_USER": answer}, "--ssh-user")


class Wizard:
    """One run. Raises ConfigError and ClusterError. What was answered before, and did, stays in
    `.env`."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self._questions = Questions(unattended=given.unattended)
        self._access = access_by(given.program, given.ssh_config)
        self._env = self._env_file()
        self._writes = True
        self._said: set[str] = set()

    def run(self) -> int:
        """All steps; the exit status."""
        with self._stoppable("the same command goes on from there"):
            facts = self._site()
            self._lanes(facts)
            config, values = self._deployment(facts)
            deployment = self._opened(config, facts)
            if self._runs(deployment):
                self._tell(values)
                say(f"{config}: serves already")
                return 0
            self._require_start(deployment, values)
        if self._given.fetch:
            wanted = Fetch(model="")
            for folder in fetch_models(wanted, config, None, *self._reached_by):
                say(f"model: {folder}")
            require_fit(deployment, self._say_once)
        say(f"ready: {config}")
        if self._given.start:
            return self._start(deployment)
        self._say_commands(deployment)
        return 0

    def look(self) -> int:
        """What is known of the nodes, and what is wrong with them; nothing is written."""
        self._writes = False
        with self._stoppable("nothing was written"), TemporaryDirectory() as folder:
            if os.environ.get("DGPP_ENV_FILE", "") and not self._env.exists():
                # What a set-up would make: one that says nothing yet.
                empty = Path(folder) / self._env.name
                empty.touch()
                os.environ["DGPP_ENV_FILE"] = str(empty)
            facts = self._site()
            self._lanes(facts)
            usual = load_site_settings().DGPP_CLUSTER_CONFIG
            if usual:
                require_fit(self._opened(Path(usual).expanduser(), facts), say)
        return 0

    @staticmethod
    @contextmanager
    def _stoppable(left: str) -> Iterator[None]:
        """A signal ends what is under way; `left` is what is true then. Fetching and starting have
        words of their own."""
        interruption = Interruption("what is under way is being ended")
        interruption.left = left
        with raised(interruption, insist=True):
            try:
                yield
            except typer.Abort:
                interruption.check()
                raise

    def _require_start(self, deployment: Deployment, values: dict[str, str]) -> None:
        """Keep `values`, which name `deployment`, where the nodes are fit for it but for its model,
        which is not there yet. Raises ConfigError, ClusterError."""
        try:
            refuse_start(deployment, self._given.program)
            # A missing driver is found before hours of download; the model is looked at after them.
            without_model = msgspec.structs.replace(deployment.settings, model=DEMO_MODEL)
            other = Deployment(deployment.config, without_model, self._access)
            other.nodes = deployment.nodes
            require_fit(other, self._say_once)
        except (ConfigError, ClusterError):
            # The next run would take it for the choice of this site, and fail as this one.
            if values:
                say(f"{self._env}: {', '.join(values)}: not written before that is mended")
            raise
        self._tell(values)

    @property
    def _reached_by(self) -> tuple[str, str]:
        return self._given.program, self._given.ssh_config

    def _opened(self, config: Path, facts: list[tuple[Node, NodeFacts]]) -> Deployment:
        """Raises ConfigError where it is for a node that is none of `facts`."""
        deployment = open_deployment(config, *self._reached_by)
        looked_at = [node.host for node, _ in facts]
        others = [host for host in deployment.settings.nodes[1:] if host not in (*looked_at, LOCAL)]
        if others:
            raise ConfigError(
                f"nodes: {config} has {' '.join(deployment.settings.nodes)}, the machines of this "
                f"set-up (--nodes, DGPP_NODES) are {' '.join(looked_at)}, without "
                f"{' '.join(others)}: name the same in both"
            )
        return deployment

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            say(line)
        self._said.add(line)

    @staticmethod
    def _env_file() -> Path:
        named = os.environ.get("DGPP_ENV_FILE", "")
        if named:
            return Path(named).expanduser()
        found = find_env_file(os.environ, site_directories())
        return found or (checkout_root() or Path.cwd()) / ".env"

    def _tell(self, values: dict[str, str]) -> None:
        """From here on the site says so: to this process, and to the next one."""
        if self._writes:
            write_values(self._env, values)
        os.environ.update(values)

    def _site(self) -> list[tuple[Node, NodeFacts]]:
        """The nodes of this site with what they are; asks for those that are not known."""
        if self._writes:
            self._tell({})
        answers = self._answers()
        try:
            facts = self._facts()
        except ClusterError:
            # The next run would take a mistyped name for known.
            if answers and self._writes:
                names = ", ".join(answers)
                say(f"{self._env}: {names}: not written before all machines are reached")
            raise
        self._tell(answers)
        return facts

    def _answers(self) -> dict[str, str]:
        """What of the site was not known, as this process knows it from here on."""
        site, given = load_site_settings(), self._given
        answers = {}
        if given.nodes or not site.DGPP_NODES:
            question = "Machines, this one first, as all of them call it"
            nodes = given.nodes or self._questions.ask(question, LOCAL, _node_list)
            _node_list(nodes)
            answers["DGPP_NODES"] = " ".join(nodes.split())
        several = len(answers.get("DGPP_NODES", "").split() or site.DGPP_NODES) > 1
        if given.ssh_user or (several and not site.DGPP_SSH_USER):
            user = given.ssh_user or self._questions.ask(
                "Login on the others", getpass.getuser(), _login
            )
            _login(user)
            answers["DGPP_SSH_USER"] = user
        if given.hub_cache or not (site.HF_HUB_CACHE or site.HF_HOME):
            question = "Folder of models, on every machine"
            answers["HF_HUB_CACHE"] = given.hub_cache or self._questions.ask(question, USUAL_HUB)
        os.environ.update(answers)
        return answers

    def _facts(self) -> list[tuple[Node, NodeFacts]]:
        settings = site_whole(load_site_settings())
        nodes = reach(settings, self._access)
        told = settings.node_env or ({},) * len(nodes)
        surveys = {n.rank: Survey(told[n.rank].get("HF_HUB_CACHE", "")) for n in nodes}
        self._install_where_absent(try_all(nodes, surveys))
        found = ask_all(nodes, surveys)
        facts = []
        for node in nodes:
            node.close()
            fact = found[node.rank].facts
            assert fact is not None
            facts.append((node, fact))
            say(f"{node.name}: {_in_words(fact)}")
        return facts

    def _install_where_absent(self, said: list[tuple[Node, Answer | ClusterError]]) -> None:
        """Bring dgpp to nodes that let us in and do not have this one. Raises ClusterError."""
        mine, lacking, wrong = version(), [], []
        for node, answer in said:
            if isinstance(answer, ClusterError):
                if isinstance(node, RemoteNode) and lets_in(node):
                    lacking.append(node)
                else:
                    wrong.append(str(answer))
            elif isinstance(node, RemoteNode) and answer.version != mine:
                lacking.append(node)
        if wrong:
            raise ClusterError("; ".join(wrong))
        if not lacking:
            return
        hosts, root = " ".join(node.host for node in lacking), checkout_root()
        question = f"Bring dgpp {mine} to {hosts} (yes or no)"
        if not (self._writes and self._given.install) or root is None:
            raise ClusterError(
                f"{hosts}: no dgpp {mine} at {shlex.join(lacking[0].program)}: install the same "
                "release there (docs/getting-started.md)"
            )
        if self._questions.choose(question, YES_OR_NO, "yes") == "no":
            raise ClusterError(f"{hosts}: no dgpp {mine} there; install it and come again")
        for node in lacking:
            say(f"{node.name}: installing dgpp {mine} at {root}")
            node.close()
        each([Peer(node, "") for node in lacking], lambda peer: bring(peer.node, root, mine))

    def _lanes(self, facts: list[tuple[Node, NodeFacts]]) -> None:
        """Which RoCE devices the nodes speak over, unless the site says so or is one machine."""
        site = load_site_settings()
        if len(facts) < 2 or site.DGPP_ROCE_DEVICES:
            return
        devices = {node.host: fact.devices for node, fact in facts}
        values = lane_values(devices, site.DGPP_NODE_OVERRIDES)
        if not values:
            bare = [host for host, found in devices.items() if not usable(found)]
            say(
                f"warning: no RoCE device with an address on {' '.join(bare)}: ranks of several "
                "machines sum over RoCE (docs/networking.md)"
            )
            return
        usual = values["DGPP_ROCE_DEVICES"]
        alike = {
            host: found for host, found in devices.items() if host not in site.DGPP_NODE_OVERRIDES
        }

        def check(answer: str) -> None:
            if answer != usual:
                _devices(answer, alike)

        chosen = self._questions.ask("RoCE devices, in the order of lanes", usual, check)
        self._tell(values if chosen == usual else {"DGPP_ROCE_DEVICES": chosen})

    def _deployment(self, facts: list[tuple[Node, NodeFacts]]) -> tuple[Path, dict[str, str]]:
        """The deployment file of this site, and what is to be kept that says so."""
        ports = self._given.ports
        values = {SITE_DEFAULTS[path]: str(port) for path, port in ports.items()}
        config = self._chosen(facts)
        os.environ.update(values)
        found = _ports(load_settings(config, ()))
        for path, port in ports.items():
            if found[path] != port:
                raise ConfigError(f"{path}: {config} says {found[path]} itself; change it there")
        known = load_site_settings().DGPP_CLUSTER_CONFIG
        if not known or Path(known).expanduser() != config:
            values["DGPP_CLUSTER_CONFIG"] = str(config)
        os.environ.update(values)
        return config, values

    def _chosen(self, facts: list[tuple[Node, NodeFacts]]) -> Path:
        known = load_site_settings().DGPP_CLUSTER_CONFIG
        given = self._given.deployment
        if known and not given:
            config = Path(known).expanduser()
            # Other nodes than before may ask for another deployment.
            if not self._given.nodes or world_size(config) == len(facts):
                return config
        names = [file.name for file in templates() if world_size(file) == len(facts)]
        if not given:
            usual = suggested(names, [fact for _, fact in facts])
            if not usual:
                raise ConfigError(
                    f"no template of {templates_folder()} is for {len(facts)} machines; name a "
                    "deployment of your own with --deployment"
                )
            given = self._questions.choose("Deployment", names, usual)
        return self._own(given)

    def _own(self, given: str) -> Path:
        """The file of the template or deployment that is called `given`."""
        file = Path(given).expanduser()
        names = {template.name: template for template in templates()}
        template = names.get(given) or names.get(f"{given}.json")
        if template is None and file.is_file():
            template = next((t for t in names.values() if t.samefile(file)), None)
            if template is None:
                return file.absolute()
        if template is None:
            raise ConfigError(
                f"--deployment: {given} is neither a file nor one of {templates_folder()}"
            )
        folder = self._env.absolute().parent / OWN_FOLDER
        config, left_out = own_deployment(template, folder, self._given.ports.get("http.port", 0))
        if left_out:
            say(f"{config}: without {', '.join(left_out)}, which this version does not serve yet")
        return config

    @staticmethod
    def _runs(deployment: Deployment) -> bool:
        return all(found.state is State.RUNNING for found in conditions(deployment))

    def _start(self, deployment: Deployment) -> int:
        ready = bring_up(deployment, Up(checks=False), say)
        typer.echo(stopped_by_down(ready, deployment))
        return 0

    def _say_commands(self, deployment: Deployment) -> None:
        program = shlex.quote(str(Path(sys.prefix) / "bin" / "dgpp"))
        if os.environ.get("DGPP_ENV_FILE", ""):
            program = f"DGPP_ENV_FILE={shlex.quote(str(self._env.absolute()))} {program}"
        by = self._access.words
        typer.echo(f"{program} up{by}        # start it; READY says that it serves")
        typer.echo(f"{program} status{by}    # which ranks run")
        typer.echo(f"{program} logs -f{by}   # what they say")
        typer.echo(f"{program} chat          # talk to it at {url_of(deployment.settings.http)}")
        typer.echo(f"{program} down{by}      # end it")
        if key_file := deployment.settings.http.api_key_file:
            typer.echo(f"Clients need the key in {key_file}")


def _ports(settings: Settings) -> dict[str, int]:
    """Those that options of the set-up name, by their keys."""
    ports = settings.ports
    return {"http.port": ports.http, "ports.journal": ports.journal, "ports.fabric": ports.fabric}


def _in_words(fact: NodeFacts) -> str:
    gpu = fact.gpu if fact.has_gpu else f"none ({fact.gpu})"
    lanes = ", ".join(lane.name for lane in usable(fact.devices)) or "none"
    return (
        f"Python {fact.python}, {in_gb(fact.memory)} of memory, GPU: {gpu}, "
        f"{in_gb(fact.free)} free at {fact.hub}, RoCE: {lanes}"
    )
