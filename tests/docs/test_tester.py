"""The tester itself: each kind of mistake on a page fails, and a page without one does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hotplate.embedded import EmbeddedServer

from .commands import check_command, split
from .names import wrong_links, wrong_names
from .page import PageError, anchor_of, read_page
from .stage import Stage, merged

Tried = Callable[[str], dict[str, int]]

MANIFESTS = """apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data:
  feature_store.yaml: |
    online_store:
      type: hotplate.online_store.CachedOnlineStore
      store: {type: sqlite}
      ttl_map: {default: 30s}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: server}
spec:
  selector: {matchLabels: {app: server}}
  template:
    metadata: {labels: {app: server}}
    spec:
      containers:
        - name: feast
          command: [feast, -c, /repo, serve, --workers, "2"]
          ports: [{name: http, containerPort: 6566}]
          readinessProbe: {httpGet: {path: /health, port: http}}
          volumeMounts: [{name: settings, mountPath: /repo}]
      volumes: [{name: settings, configMap: {name: settings}}]
"""


@pytest.fixture
def tried(tmp_path: Path, own_valkey: EmbeddedServer) -> Iterator[Tried]:
    """Writes a page, and runs it."""
    stage: list[Stage] = []

    def run(text: str) -> dict[str, int]:
        path = tmp_path / "page.md"
        path.write_text(text)
        page = read_page(path)
        if not stage:
            stage.append(Stage(tmp_path, own_valkey))
        for block in page.blocks:
            stage[0].run(block)
        return stage[0].ran

    yield run
    for one in stage:
        one.close()


def block(kind: str, text: str, note: str = "") -> str:
    return f"# Page\n\n{note}\n```{kind}\n{text}\n```\n"


def test_a_right_page_passes(tried: Tried) -> None:
    """Settings reach commands, files reach Python, and Python goes on from block to block."""
    settings = "online_store: {ttl_map: {card_stats: 7s}, profiles: {edge: {card_stats: 9m}}}"
    line = "│ card_stats │ {} │ 5s │ 0.1 │ off │ raise │ ttl │ cached │"
    blocks = [
        block("yaml", settings),
        block("console", f"$ hotplate policy\n...\n{line.format('7s')}"),
        block("python", "number = 40", "<!-- file: mine.py -->"),
        block("python", "from mine import number as n\nassert n == number == 40"),
        block("console", "$ hotplate purge", "<!-- exits: 2 -->"),
        block("yaml", "online_store: {ttl_map: {'*': 3h}}", "<!-- apart: another place -->"),
        block("console", f"$ HOTPLATE_PROFILE=edge hotplate policy\n{line.format('9m')}"),
        block("python", "raise SystemExit", "<!-- not run: it would end the tests -->"),
        block("conf", "maxmemory 100mb"),
        block("console", "$ redis-cli CONFIG GET maxmemory\n['maxmemory', '104857600']"),
        block("console", "$ export MINE=1\n$ make demo"),
        block("python", "import os\nassert os.environ['MINE'] == '1'"),
        block("yaml", MANIFESTS),
    ]
    assert tried("\n".join(blocks)) == {"run": 10, "checked": 3, "not run": 1}


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        (block("python", "x = 1\nx.nothing"), r"page.md:4: line 6: AttributeError"),
        (block("python", "x ="), "invalid syntax"),
        (block("python", "x =", "<!-- not run: it is only looked at -->"), "invalid syntax"),
        (block("", "$ hotplate policy"), "a block of nothing"),
        (block("json", "{}"), "a block of json"),
        ("# Page\n\nText.\n\n    indented\n", "by indentation"),
        (block("python", "1", "<!-- not run: no -->"), "without a reason"),
        (block("python", "1", "<!-- skip: because I say so -->"), "says 'skip'"),
        (block("yaml", "online_store: {ttl_maps: {}}"), "unknown settings ttl_maps"),
        (block("yaml", "online_store: {ttl_map: {card_statz: 7s}}"), "card_statz"),
        (block("yaml", "online_store: {ttl_map: {card_stats: 7}}"), "PolicyError"),
        (block("yaml", "online_store: {profiles: {edge: {card_statz: 7s}}}"), "card_statz"),
        (block("yaml", "online_store: {memory: {max_byte: 1}}"), "max_byte"),
        (block("yaml", "online_store: {store: {type: redis, conection: a}}"), "refused"),
        (
            block("yaml", "online_store: {blobs: {folder: a}}", "<!-- apart: elsewhere it is -->"),
            "begins with no '/'",
        ),
        (block("yaml", "a: [1"), "no YAML"),
        (block("console", "hotplate policy"), "comes before any command"),
        (block("console", "$ hotplate polcy"), "no command 'polcy'"),
        (block("console", "$ hotplate policy --lang"), "--lang"),
        (block("console", "$ hotplate purge --rate fast --all"), "is no rate"),
        (block("console", "$ hotplate purge nothing"), "ended with 1"),
        (block("console", "$ hotplate policy", "<!-- exits: 1 -->"), "ended with 0"),
        (block("console", "$ hotplate windows consume"), "Missing argument"),
        (block("console", "$ hotplate policy\nsomething else"), "did not say 'something else'"),
        (block("console", "$ redis-cli INCR x\n2"), "did not say '2'"),
        (block("console", "$ feast aply"), "aply"),
        (block("console", "$ feast serve --worker 2 -z"), "-z"),
        (block("console", "$ make demos"), "no target 'demos'"),
        (block("console", "$ make bench ARGS='--lonely x'"), "--lonely"),
        (block("console", "$ python -m pipelines.frauds run"), "no pipelines.frauds"),
        (block("console", "$ python -m pipelines.fraud trian"), "no command 'trian'"),
        (block("console", "$ python -m pipelines.fraud train --device tpu"), "tpu"),
        (block("console", "$ pip install 'feast-hotplate[rediss]'"), "no extra 'rediss'"),
        (block("console", "$ pip install requests"), "none of ours"),
        (block("console", "$ rm -rf data"), "nobody runs or checks 'rm'"),
        (block("console", "$ redis-cli SETT a b"), "unknown command"),
        (block("conf", "maxmemory lots"), "CONFIG SET"),
        (block("conf", "maxmemories 1"), "has no maxmemories"),
        (block("conf", "user a on +nonsense"), "SETUSER"),
        (block("yaml", MANIFESTS.replace("port: http", "port: web")), "asks port 'web'"),
        (
            block("yaml", MANIFESTS.replace("configMap: {name: s", "configMap: {name: x")),
            "xettings",
        ),
        (block("yaml", MANIFESTS.replace("[{name: s", "[{name: x", 1)), "xettings"),
        (block("yaml", MANIFESTS.replace("{app: server}}\n  t", "{app: other}}\n  t")), "selector"),
        (block("yaml", MANIFESTS.replace("--workers", "--wrokers")), "--wrokers"),
        (block("yaml", MANIFESTS.replace("apps/v1", "v1")), "a Deployment of v1"),
        (block("yaml", MANIFESTS.replace("ttl_map", "ttl_mop")), "unknown settings ttl_mop"),
    ],
)
def test_a_wrong_page_fails(tried: Tried, page: str, problem: str) -> None:
    """And says where, and what is wrong."""
    with pytest.raises(PageError, match=problem):
        tried(page)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a](nowhere.md)", "nowhere.md, which is not there"),
        ("[a](#no-such-heading)", "no heading #no-such-heading"),
        ("[a](../docs/limits.md#no)", "no heading #no"),
    ],
)
def test_a_wrong_link_is_found(tmp_path: Path, text: str, problem: str) -> None:
    """To a page or to a heading."""
    path = tmp_path / "page.md"
    docs = tmp_path.parent / "docs"
    docs.mkdir(exist_ok=True)
    (docs / "limits.md").write_text("# Limits\n")
    path.write_text(f"# A heading, `of code`: twice!\n\n{text} [b](#a-heading-of-code-twice)\n")
    (found,) = wrong_links(read_page(path))
    assert problem in found
    assert found.startswith("page.md:3")


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("tests/nowhere/test_this.py", "no such file"),
        ("test_that_is_nowhere.py", "no file of this name"),
        ("test_that_is_nowhere_at_all", "no such test"),
        ("hotplate purge --al", "--al"),
        ("hotplate prge", "no command 'prge'"),
        ("make benches", "no target"),
        ("python -m pipelines.fraud trian", "no command 'trian'"),
        ("--max-mises 100/s", "no command has this option"),
        ("hot.stat()", "has no 'stat'"),
        ("memory.max_byte", "no such setting"),
        ("+get +mgets", "+mgets"),
    ],
)
def test_a_wrong_name_is_found(tmp_path: Path, code: str, problem: str) -> None:
    """In backticks, within a sentence; the others there are not."""
    path = tmp_path / "page.md"
    right = "`hotplate purge [--all]`, `make bench ARGS='--only x'`, `+get +mget`, `hot.stats().x`"
    path.write_text(f"# Page\n\n{right}, `tests/docs/page.py`, `--max-misses 1/s`, `{code}`.\n")
    (found,) = wrong_names(read_page(path))
    assert problem in found


def test_a_block_that_names_the_store_says_all_of_it() -> None:
    """As somebody does who moves the store in; other blocks are laid over what is there."""
    before = {"project": "p", "online_store": {"type": "sqlite", "path": "a.db"}}
    moved = merged(before, {"online_store": {"type": "hot", "store": {"type": "sqlite"}}})
    assert moved == {"project": "p", "online_store": {"type": "hot", "store": {"type": "sqlite"}}}
    assert merged(moved, {"online_store": {"ttl_map": {"a": "1s"}}})["online_store"] == {
        "type": "hot",
        "store": {"type": "sqlite"},
        "ttl_map": {"a": "1s"},
    }


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("hotplate policy   # what is cached", [["hotplate", "policy"]]),
        ("make demo ARGS='--data FILE'", [["make", "demo", "ARGS=--data FILE"]]),
        ("cd a && feast apply", [["cd", "a"], ["feast", "apply"]]),
        ("python -m pipelines.fraud server &", [["python", "-m", "pipelines.fraud", "server"]]),
    ],
)
def test_a_line_is_read_as_a_shell_does(line: str, words: list[list[str]]) -> None:
    """Without its comment, in parts."""
    assert split(line) == words
    for part in words:
        check_command(part)


def test_headings_are_named_as_github_does() -> None:
    """Code, punctuation and all."""
    assert (
        anchor_of("`feast serve` and its workers".replace("`", "")) == "feast-serve-and-its-workers"
    )
    assert anchor_of("The server's user") == "the-servers-user"
    assert anchor_of("TLS, clusters, sentinels") == "tls-clusters-sentinels"
