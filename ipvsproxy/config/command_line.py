"""The command line as a whole: which command is meant, with what configuration, and what the exit codes say.

argparse makes the help, and anything else that is made from a parser; what Go's flags do differently is put right
before it looks (flags.spell_plainly), so nothing is abbreviated, and no switch eats the next word.
"""

from __future__ import annotations

import argparse
import functools
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from typing import Any, TypeAlias

import msgspec

from ipvsproxy import __version__
from ipvsproxy.config.field_errors import quoted
from ipvsproxy.config.flags import (
    CLEANUP,
    DIFF_OUTPUT,
    FROM,
    FROM_CLUSTER,
    HEALTHZ_PORT,
    HELP,
    INIT_ONLY,
    IP_FAMILIES,
    METRICS_PORT,
    NODE_ADDRESSES,
    OUTPUT,
    VERSION,
    WRITE_CONFIG_TO,
    Commands,
    Flag,
    FlagValue,
    Group,
    flags_of,
    spell_plainly,
)
from ipvsproxy.config.read import Given, ReadFile, no_files, read_config
from ipvsproxy.config.targets import Question, parse_target
from ipvsproxy.config.types import DiffFormat, KubeProxyConfiguration, LookOptions, PlanFormat, PlanOptions, ProxyConfig
from ipvsproxy.errors import ConfigError
from ipvsproxy.model.enums import Family

_DEFAULTS = {HEALTHZ_PORT.name: "10256", METRICS_PORT.name: "10249"}  # of flags without a field
_HELP_COLUMNS = 100
_FLAG_COLUMNS = 38

_DESCRIPTION = """\
A Kubernetes Service proxy on Linux IPVS. It takes kube-proxy's flags in
kube-proxy's spellings: --x=v or --x v; --flag, --flag=true or --flag=false;
durations such as 1m30s or 500ms; lists with commas; _ for - in names."""

_DESCRIPTIONS = {
    Commands.DIFF: """\
What a start with these flags would change in this kernel now, an operation a
line; nothing is changed. The cluster is that of --manifests, or of the API
server. What drains by right is no difference, and what is not ours is left out.
Beside a daemon at work, a difference that stays is one it cannot put right.""",
    Commands.EXPLAIN: """\
A Service (namespace/name) or one VIP or node port (ADDRESS:PORT): each endpoint
with the reason why it is used or not, wanted against actual for each object,
and what a start would change; nothing is changed. With --from also which rules
of ours the first packet of a connection meets, and where it ends.""",
}
_USAGE = {
    Commands.PROXY: """\
ipvsproxy [flags]                  serve: program the kernel and follow changes
       ipvsproxy --cleanup [flags]        remove everything of ours from the kernel
       ipvsproxy plan -o FORMAT [flags]   print what would be programmed; touches nothing
       ipvsproxy diff [flags]             print what a start would change; touches nothing
       ipvsproxy explain TARGET [flags]   say why a Service is served as it is; touches nothing
       ipvsproxy status [arguments]       list what the kernel has; arguments are ipvsadm's
       ipvsproxy status --names [options] the same with Services and pods: status --names --help
       ipvsproxy top [--once]             follow connections, rates and draining""",
    Commands.PLAN: "ipvsproxy plan -o FORMAT (--manifests DIR | --from-cluster) [flags]",
    Commands.DIFF: "ipvsproxy diff [--manifests DIR] [-o json] [flags]",
    Commands.EXPLAIN: "ipvsproxy explain NAMESPACE/NAME|ADDRESS:PORT[/TCP] [--from CLIENT] [flags]",
}


class ExitCode(IntEnum):
    """What the program answers. `status` answers as ipvsadm does."""

    OK = 0
    ERROR = 1
    DIFFERENT = 1
    INCOMPLETE = 2
    TROUBLE = 2  # of the commands that answer as diff(1) does
    UNSUPPORTED = 3
    ALREADY_RUNNING = 4
    INTERRUPTED = 130
    BROKEN_PIPE = 141


EXIT_CODE_MEANINGS = {
    ExitCode.OK: "success",
    ExitCode.ERROR: "a configuration that cannot be used, or another error; diff, explain: not as planned",
    ExitCode.INCOMPLETE: "plan: some objects were left out; status: no IPVS for us; diff, explain: trouble",
    ExitCode.UNSUPPORTED: "the kernel lacks something that is needed, or a permission is missing",
    ExitCode.ALREADY_RUNNING: "another ipvsproxy works in this network namespace",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C",
    ExitCode.BROKEN_PIPE: "the reader of the output went away",
}


@dataclass(frozen=True, slots=True)
class Serve:
    """Run the proxy. `reread` says what the same command line means by now, and raises ConfigError."""

    config: ProxyConfig
    reread: Callable[[], ProxyConfig] = field(compare=False)


@dataclass(frozen=True, slots=True)
class Write:
    """Write the configuration in force, `text`, to the file `path`."""

    config: ProxyConfig
    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Prepare:
    """Do what needs privileges (--init-only)."""

    config: ProxyConfig


@dataclass(frozen=True, slots=True)
class CleanUp:
    """Remove what is ours."""

    config: ProxyConfig


@dataclass(frozen=True, slots=True)
class Plan:
    """Print what would be programmed."""

    config: ProxyConfig
    options: PlanOptions


@dataclass(frozen=True, slots=True)
class Diff:
    """Print what a start would change in the kernel."""

    config: ProxyConfig
    options: LookOptions
    format: DiffFormat = DiffFormat.TEXT


@dataclass(frozen=True, slots=True)
class Explain:
    """Say why a Service or a frontend is served as it is."""

    config: ProxyConfig
    options: LookOptions
    question: Question


@dataclass(frozen=True, slots=True)
class Status:
    """List what the kernel has; the arguments are ipvsadm's, and ours too unless it should be as ipvsadm is."""

    arguments: tuple[str, ...]
    as_ipvsadm: bool = False


@dataclass(frozen=True, slots=True)
class Top:
    """Follow what goes through IPVS; the arguments are its own."""

    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Show:
    """Print this text."""

    text: str


Command: TypeAlias = Serve | Write | Prepare | CleanUp | Plan | Diff | Explain | Status | Top | Show


def parse_command_line(argv: Sequence[str], read_file: ReadFile = no_files) -> Command:
    """What the words after the program's name ask for; `read_file` reads the file of --config. Raises ConfigError."""
    match list(argv):
        case ["status" | "ipvsadm" as name, *words]:
            return Status(tuple(words), as_ipvsadm=name == "ipvsadm")
        case ["top", *words]:
            return Top(tuple(words))
        case ["plan", *words]:
            return _parse_plan(words, read_file)
        case ["diff", *words]:
            return _parse_diff(words, read_file)
        case ["explain", *words]:
            return _parse_explain(words, read_file)
        case words:
            return _parse_proxy(words, read_file)


def _parse_proxy(words: list[str], read_file: ReadFile) -> Command:
    given = _parse(words, Commands.PROXY)
    if HELP.name in given:
        return Show(help_text(Commands.PROXY))
    if given.get(VERSION.name):
        return Show(f"ipvsproxy {__version__}")
    config = _config(given, read_file)
    if given.get(WRITE_CONFIG_TO.name):
        return _write(config, given[WRITE_CONFIG_TO.name])
    if given.get(CLEANUP.name):
        return CleanUp(config)
    if given.get(INIT_ONLY.name):
        return Prepare(config)
    _refuse_two_sources(config)
    return Serve(config, partial(_read_again, given, read_file))


def _config(given: Given, read_file: ReadFile) -> ProxyConfig:
    return replace(read_config(given, read_file), flag_values=_flag_values(given))


def _read_again(given: Given, read_file: ReadFile) -> ProxyConfig:
    """What the same command line means by now."""
    config = _config(given, read_file)
    _refuse_two_sources(config)
    return config


def _write(config: ProxyConfig, path: str) -> Command:
    from ipvsproxy.config.load import render  # noqa: PLC0415  # PyYAML, which flags alone do without

    return Write(config, path, render(config.written))


def _parse_plan(words: list[str], read_file: ReadFile) -> Command:
    given = _parse(words, Commands.PLAN)
    if HELP.name in given:
        return Show(help_text(Commands.PLAN))
    config = _config(given, read_file)
    if OUTPUT.name not in given:
        raise ConfigError(OUTPUT.name, "not given", f"Say what to print: -o {'|'.join(PlanFormat)}")
    from_cluster = bool(given.get(FROM_CLUSTER.name))
    if from_cluster == bool(config.manifests):
        hint = "Name a folder of Services, EndpointSlices and Nodes as YAML or JSON files, or ask the API server"
        raise ConfigError("--manifests or --from-cluster", "exactly one of them must be given", hint)
    options = PlanOptions(
        format=given[OUTPUT.name],
        from_cluster=from_cluster,
        node_addresses=tuple(given.get(NODE_ADDRESSES.name, ())),
        families=frozenset(given.get(IP_FAMILIES.name, Family)),
    )
    return Plan(config, options)


def _parse_diff(words: list[str], read_file: ReadFile) -> Command:
    given = _parse(words, Commands.DIFF)
    if HELP.name in given:
        return Show(help_text(Commands.DIFF))
    config = _config(given, read_file)
    return Diff(config, _look_options(config, given), given.get(DIFF_OUTPUT.name, DiffFormat.TEXT))


def _parse_explain(words: list[str], read_file: ReadFile) -> Command:
    """The first word is what it is about, all else is flags."""
    target, flags = (words[0], words[1:]) if words and not words[0].startswith("-") else ("", words)
    given = _parse(flags, Commands.EXPLAIN)
    if HELP.name in given:
        return Show(help_text(Commands.EXPLAIN))
    if not target:
        raise ConfigError("explain", "nothing to explain is given", f"Usage: {_USAGE[Commands.EXPLAIN]}")
    config = _config(given, read_file)
    return Explain(config, _look_options(config, given), Question(parse_target(target), given.get(FROM.name)))


def _look_options(config: ProxyConfig, given: Given) -> LookOptions:
    """The folder where one is named, else the API server: as the proxy itself takes them. Raises ConfigError."""
    _refuse_two_sources(config)
    return LookOptions(from_cluster=not config.manifests, families=frozenset(given.get(IP_FAMILIES.name, Family)))


def _refuse_two_sources(config: ProxyConfig) -> None:
    if config.manifests and (config.kubeconfig or config.master):
        hint = "Leave --manifests out to follow the API server"
        raise ConfigError("--manifests and --kubeconfig or --master", "only one of them can be followed", hint)


def _parse(words: list[str], command: Commands) -> dict[str, Any]:
    """Each flag that was given with its value. Raises ConfigError."""
    plain = spell_plainly(words, flags_of(command))
    if HELP.name in plain:
        return {HELP.name: True}
    return vars(make_parser(command).parse_args(plain))


def _flag_values(given: Given) -> dict[str, str]:
    """Every flag of the proxy with its value as pflag prints it, sorted by name."""
    flags = sorted(flags_of(Commands.PROXY), key=lambda flag: flag.name)
    return {flag.name[2:]: _flag_text(flag, given.get(flag.name, _default(flag))) for flag in flags}


def _flag_text(flag: Flag, value: Any) -> str:  # noqa: ANN401  # what the row's own parse gave
    if flag.is_map:
        return ",".join(f"{name}={_scalar_text(item)}" for name, item in dict(value).items())
    return f"[{','.join(value)}]" if flag.is_list else _scalar_text(value)


def _scalar_text(value: bool | str | float) -> str:  # noqa: FBT001  # text is made of it, nothing is decided by it
    return str(value).lower() if isinstance(value, bool) else str(value)


def make_parser(command: Commands) -> argparse.ArgumentParser:
    """The parser of a command; its namespace holds only what was given, under the flags' names."""
    parser = argparse.ArgumentParser(
        prog="ipvsproxy",
        usage=_USAGE[command],
        description=_DESCRIPTIONS.get(command, _DESCRIPTION),
        epilog=_epilog(),
        formatter_class=_HelpFormatter,
        argument_default=argparse.SUPPRESS,
        add_help=False,
        allow_abbrev=False,
    )
    flags = flags_of(command)
    for group in Group:
        section = parser.add_argument_group(group.value)
        for flag in flags:
            if flag.group is group:
                section.add_argument(*filter(None, (flag.short, flag.name)), **_argument_options(flag))
    return parser


def _argument_options(flag: Flag) -> dict[str, Any]:
    options: dict[str, Any] = {"nargs": "?", "const": True} if flag.is_switch else {}
    return options | {
        "dest": flag.name,
        "action": "extend" if flag.is_list else "store",
        "type": functools.partial(_convert, flag),
        "metavar": flag.metavar,
        "help": flag.help.replace("%", "%%") + _default_text(flag),
    }


def _convert(flag: Flag, text: str) -> FlagValue:
    try:
        return flag.parse(text)
    except ValueError as error:
        raise ConfigError(flag.name, f"invalid value {quoted(text)}: {error}") from error


def _default_text(flag: Flag) -> str:
    default = _default(flag)
    return f" (default {_flag_text(flag, default)})" if default else ""


def _default(flag: Flag) -> FlagValue:
    if not flag.field:
        return _DEFAULTS.get(flag.name, False if flag.is_switch else "")
    value: Any = _defaults()
    for key in flag.field.split("."):
        value = value[key]
    return value


@functools.cache
def _defaults() -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(KubeProxyConfiguration())
    return document


def _epilog() -> str:
    rows = (f"  {code.value:<5}{meaning}" for code, meaning in EXIT_CODE_MEANINGS.items())
    return "\n".join(("Exit codes:", *rows))


def help_text(command: Commands) -> str:
    """The help of a command, at most 100 columns wide."""
    return make_parser(command).format_help().rstrip("\n")


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Switches without a metavar, a fixed place for the texts, and no line wider than the terminal or 100 columns."""

    def __init__(self, prog: str) -> None:
        columns = min(_HELP_COLUMNS, shutil.get_terminal_size((_HELP_COLUMNS, 24)).columns)
        super().__init__(prog, max_help_position=_FLAG_COLUMNS, width=columns)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        names = ", ".join(action.option_strings)
        return f"{names} {action.metavar}" if action.metavar else names
