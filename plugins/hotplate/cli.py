"""The `hotplate` command."""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class
from rich.console import Console
from rich.table import Table

from hotplate.cli_advise import advise
from hotplate.cli_inspect import inspect
from hotplate.cli_metrics import metrics, report, stats, top
from hotplate.cli_outputs import outputs
from hotplate.cli_quality import quality
from hotplate.cli_repo import (
    Commands,
    chdir_option,
    fail,
    json_option,
    named,
    open_store,
    per_second,
    state_option,
    told,
)
from hotplate.cli_skew import drift, skew
from hotplate.cli_warm import warm
from hotplate.cli_windows import windows
from hotplate.errors import HotplateError
from hotplate.policy import ResolvedPolicy

__all__ = ["main"]


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="feast-hotplate")
def main() -> None:
    """Look at the cache that keeps a Feast warm, and look after it.

    \b
    hotplate policy     what each group's settings are, and where they are said
    hotplate doctor     whether the deployment can do what they ask
    hotplate top        what the cache does now

    Exit codes: 0 fine; 1 something is wrong with the repo, the settings or a server, or a check
    failed; 2 wrong usage; 130 interrupted.
    """


@main.command()
@chdir_option
@click.option("--long", "is_long", is_flag=True, help="Every setting, and where it is said.")
@click.option("--json", "as_json", is_flag=True, help="The same for machines.")
def policy(chdir: Path, is_long: bool, as_json: bool) -> None:
    """Print every group's policy.

    Reads the applied registry, the TTL map of feature_store.yaml and the profile that the
    environment chose. Asks no online store.
    """
    from hotplate import of

    store = open_store(chdir)
    try:
        hot = of(store)
        policies, loaders = hot.policies(), hot.loaders()
    except HotplateError as error:
        fail(str(error))
    except Exception as error:  # noqa: BLE001 - a registry fails in as many ways as it has kinds
        fail(f"Feast cannot read the registry of {chdir.resolve()}: {error}")
    if as_json:
        shown = {
            name: {
                "settings": resolved.shown(),
                "origins": dict(resolved.origins),
                "loaders": loaders.get(name, {}),
            }
            for name, resolved in policies.items()
        }
        click.echo(json.dumps(shown, indent=2))
        return
    console = Console(width=None if sys.stdout.isatty() else 160)
    if not policies:
        console.print("Nothing is applied yet: run [bold]feast apply[/bold].")
        return
    title = f"Cache policies (profile: {store.config.online_store.profile() or 'none'})"
    table = Table(title=title, title_justify="left", highlight=True)
    (_fill_long if is_long else _fill_short)(table, policies, loaders)
    console.print(table)
    for ttl_map in store.config.online_store.layers().maps:
        for wildcard in ttl_map.idle_wildcards(policies):
            click.echo(f"{ttl_map.origin}[{wildcard!r}] matches no group.")
    if not is_long:
        click.echo("Where each setting is said: hotplate policy --long")


_IN_SHORT: Final = {  # setting -> header
    "ttl": "ttl",
    "negative_ttl": "negative",
    "jitter": "jitter",
    "stale_while_revalidate": "revalidate",
    "on_source_error": "on source error",
    "coherence": "coherence",
}


def _fill_short(
    table: Table,
    policies: Mapping[str, ResolvedPolicy],
    loaders: Mapping[str, Mapping[str, str]],
) -> None:
    """One line a group; where nothing is kept, no other setting has an effect."""
    table.add_column("group", style="bold", overflow="fold")
    for header in _IN_SHORT.values():
        table.add_column(header)
    table.add_column("cache")
    has_loaders = any(loaders.values())
    if has_loaders:
        table.add_column("loader")
    for name, resolved in policies.items():
        shown = resolved.shown()
        settings, cache = [shown[name] for name in _IN_SHORT], shown["cache"]
        if not resolved.is_cached:
            settings = ["-"] * len(settings)
            cache = "never" if resolved.is_never else "never (no ttl)"
        kinds = sorted(set(loaders.get(name, {}).values()))
        table.add_row(name, *settings, cache, *([", ".join(kinds)] if has_loaders else []))


def _fill_long(
    table: Table,
    policies: Mapping[str, ResolvedPolicy],
    loaders: Mapping[str, Mapping[str, str]],
) -> None:
    """One line a setting, with where it is said."""
    table.add_column("group", style="bold")
    table.add_column("setting")
    table.add_column("value")
    table.add_column("where it is said", style="dim")
    for name, resolved in policies.items():
        lines = [
            (
                setting,
                value if resolved.is_cached or setting in ("coherence", "cache", "absent") else "-",
                resolved.origins.get(setting, "built-in default"),
            )
            for setting, value in resolved.shown().items()
        ]
        lines += [
            ("loader", f"{kind} (feature view {view})", "loaders")
            for view, kind in loaders.get(name, {}).items()
        ]
        for index, line in enumerate(lines):
            table.add_row(name if index == 0 else "", *line, end_section=index == len(lines) - 1)


@main.command()
@click.argument("group")
@click.option(
    "--entity", "entities", multiple=True, metavar="KEY=VALUE[,KEY=VALUE]", help="One entity."
)
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Entities in CSV, Parquet or JSON lines, a column a join key.",
)
@click.option("--all", "is_whole", is_flag=True, help="Every entity of the group.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and stop.")
@click.option("--yes", is_flag=True, help="Do not ask; needed where nobody could answer.")
@json_option
@chdir_option
def invalidate(
    group: str,
    entities: tuple[str, ...],
    files: tuple[Path, ...],
    is_whole: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    chdir: Path,
) -> None:
    """Forget entities of a GROUP (or feature view) wherever they are kept.

    Removes them from the shared tier and tells the processes that listen. Exits with 1 where
    nobody can be told, and where the server did not take all of it.
    """
    from hotplate import of
    from hotplate.operations.invalidate import be_patient
    from hotplate.operations.shown import counting, say_outcome, say_scope

    if is_whole == bool(entities or files):
        raise click.UsageError("name entities with --entity or --file, or all of them with --all")
    store = open_store(chdir)
    be_patient(store)
    with told():
        hot = of(store)
        with named():
            job = hot.invalidation(group)
        if not job.is_cached:
            said = f"{group} is never served from a cache: there is nothing to invalidate"
            click.echo(json.dumps({"nothing": said}) if as_json else said)
            return
        if unreachable := job.unreachable():
            fail(_nobody(unreachable))
        chosen = None if is_whole else job.reader().chunks(entities, files)
        with counting("counting") as advance:
            scope = job.scope(chosen, advance)
        if not as_json:
            click.echo(f"would invalidate {say_scope(scope, group)}")
        if dry_run:
            if as_json:
                click.echo(json.dumps({"scope": asdict(scope)}))
            return
        _confirm("Invalidate?", yes=yes)
        with counting("invalidating", scope.entities) as advance:
            outcome = job.carry_out(chosen, advance)
        hot.runtime.close()
        if not outcome.is_complete:
            fail(say_outcome(outcome, scope))
        if as_json:
            click.echo(json.dumps({"scope": asdict(scope), "outcome": asdict(outcome)}))
        else:
            click.echo(say_outcome(outcome, scope))


@main.command()
@click.argument("groups", nargs=-1, metavar="[GROUP]...")
@click.option("--all", "is_whole", is_flag=True, help="The whole project.")
@click.option(
    "--outdated",
    is_flag=True,
    help="Only what nobody would serve: of another schema, of a view that is gone, invalidated.",
)
@click.option(
    "--rate",
    callback=per_second,
    default="10000/s",
    show_default=True,
    metavar="N/s",
    help="Entries removed.",
)
@click.option(
    "--batch",
    type=click.IntRange(1, 10_000),
    default=50,
    show_default=True,
    metavar="N",
    help="Entries removed at once.",
)
@click.option(
    "--max-misses",
    callback=per_second,
    metavar="N/s",
    default="200/s",
    show_default=True,
    help="Extra reads of the source that may follow.",
)
@click.option("--resume", is_flag=True, help="Go on with the purge that was stopped.")
@state_option
@json_option
@chdir_option
def purge(
    groups: tuple[str, ...],
    is_whole: bool,
    outdated: bool,
    rate: int,
    batch: int,
    max_misses: int,
    resume: bool,
    state: Path | None,
    as_json: bool,
    chdir: Path,
) -> None:
    """Remove entries of the shared tier little by little: of GROUPs, or of the whole project.

    The processes that listen forget the same entities at the same pace. Ctrl-C stops it; --resume
    goes on.
    """
    from hotplate import of
    from hotplate.operations.cursors import CursorFile, state_folder
    from hotplate.operations.purge import Limits
    from hotplate.operations.shown import PurgeReport, say_progress
    from hotplate.pace import giving_way

    if sum((bool(groups), is_whole, resume)) != 1 and not (outdated and not groups and not resume):
        raise click.UsageError("name groups, or --all, or --outdated, or --resume")
    if resume and outdated:
        raise click.UsageError("--resume goes on with what was chosen before")
    store = open_store(chdir)
    report = PurgeReport()
    with told(), giving_way():
        hot = of(store)
        folder = state or state_folder()
        left = CursorFile(folder, store.project).load()
        if resume and left is None:
            said = "there is nothing to resume"
            click.echo(json.dumps({"nothing": said}) if as_json else said)
            return
        if left is not None and not resume:
            said = f"a purge of {left.selection} that was stopped is given up for this one"
            click.echo(said, err=as_json)
        limits = Limits(rate, batch, max_misses)
        with named():
            steps = hot.purge(
                groups or None, outdated=outdated, limits=limits, resume=resume, state=folder
            )
        try:
            for progress in steps:
                report.note(progress)
        except (KeyboardInterrupt, HotplateError) as error:
            report.end()
            so_far = "stopped" if report.last is None else f"stopped: {say_progress(report.last)}"
            again = shlex.join(["hotplate", "purge", "--resume", "--state", str(folder)])
            click.echo(f"{so_far}; go on with: {again} -c {shlex.quote(str(chdir))}", err=True)
            if isinstance(error, KeyboardInterrupt):
                raise SystemExit(130) from None
            raise
        finally:
            hot.runtime.close()
        report.end()
        if report.last is not None and as_json:
            click.echo(json.dumps(asdict(report.last)))
        elif report.last is not None:
            click.echo(f"done: {say_progress(report.last)}")


@main.command()
@chdir_option
@json_option
def doctor(chdir: Path, as_json: bool) -> None:
    """Look the deployment over, and say what to change.

    Tries on throw-away keys (hotplate:doctor:*) what the cache does to its servers. Exits with 1
    where anything does not work; warnings do not count.
    """
    from hotplate import of

    store = open_store(chdir)
    with told():
        found = of(store).examine()
    counts = Counter(finding.status for finding in found)
    if as_json:
        body = {
            "errors": counts["error"],
            "warnings": counts["warning"],
            "checks": [asdict(finding) for finding in found],
        }
        click.echo(json.dumps(body, indent=2))
    else:
        colors = {"ok": "green", "warning": "yellow", "error": "red"}
        for finding in found:
            status = click.style(f"{finding.status:7}", fg=colors[finding.status])
            fix = f". Fix: {finding.fix}" if finding.fix else ""
            click.echo(f"{status} {finding.check}: {finding.seen.rstrip('.')}{fix}")
    raise SystemExit(1 if counts["error"] else 0)


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what lets a SHELL complete this command's parts and options.

    \b
    bash: eval "$(hotplate completion bash)" in ~/.bashrc
    zsh:  eval "$(hotplate completion zsh)" in ~/.zshrc
    fish: hotplate completion fish > ~/.config/fish/completions/hotplate.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(main, {}, "hotplate", "_HOTPLATE_COMPLETE").source())


def _nobody(unreachable: dict[str, str]) -> str:
    when = "; ".join(f"{view}: {seen}" for view, seen in unreachable.items())
    return (
        "nobody can be told, and nothing was done: these views have coherence: ttl, and there is "
        f"no server on which processes meet. Other processes see the change by themselves ({when}, "
        "as this profile has it). Name a Redis or Valkey server under online_store.shared."
    )


def _confirm(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(
            "nobody is there to confirm it: add --yes, or --dry-run to only look"
        )
    if not click.confirm(question):
        fail("nothing was done")


_COMMANDS = (advise, drift, inspect, metrics, outputs, quality, report, skew, stats, top)
for _command in (*_COMMANDS, warm, windows):
    main.add_command(_command)


if __name__ == "__main__":
    main()
