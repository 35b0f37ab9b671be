import json
import pickle
import sys
import textwrap

import pytest

from clawcli.errors import SetupError
from clawcli.ingest.secrets.redact import Redactor
from clawcli.ingest.secrets.scanner import Found, Scanner

SECRET = "hush-hush"


def scanner_file(tmp_path, body):
    """A program that does this with each line; write(...) answers."""
    path = tmp_path / "scan.py"
    path.write_text(
        "import json, sys, time\n"
        "def write(**line):\n"
        "    print(json.dumps(line), flush=True)\n"
        "for line in sys.stdin:\n"
        "    text = json.loads(line)\n" + textwrap.indent(textwrap.dedent(body), "    ")
    )
    return f"{sys.executable} {path}"


FINDS = f"""
    at = text["text"].find("{SECRET}")
    if at >= 0:
        write(id=text["id"], start=at, end=at + len("{SECRET}"), rule="hush")
    write(id=text["id"])
"""


@pytest.fixture
def scanner(tmp_path):
    started = []

    def start(body, timeout_s=20.0):
        started.append(Scanner(scanner_file(tmp_path, body), timeout_s=timeout_s))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_find_gives_what_the_program_found_per_text(scanner):
    one = scanner(FINDS)
    found = one.find(["nothing", f"né {SECRET}", ""])
    assert found == [[], [Found(3, 3 + len(SECRET), "hush")], []]
    assert one.find([SECRET]) == [[Found(0, len(SECRET), "hush")]]


def test_find_starts_the_program_once(scanner, tmp_path):
    path = str(tmp_path / "pids")
    one = scanner(f"""
    import os
    open({path!r}, "a").write(f"{{os.getpid()}} ")
    write(id=text["id"])
    """)
    for _ in range(3):
        one.find(["a", "b"])
    assert len(set((tmp_path / "pids").read_text().split())) == 1


def test_find_more_than_a_pipe_holds_does_not_wait_for_itself(scanner):
    texts = [f"{'x' * 50_000}{SECRET}"] * 40
    assert all(len(found) == 1 for found in scanner(FINDS).find(texts))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("sys.exit(3)", "ended before it had answered"),
        ("time.sleep(60)", "was silent for"),
        ("print('hush-hush', flush=True)", "a line that is not"),
        ("write(id='hush-hush')", "a line that is not"),
        ("write(id=99)", "an id that is not one"),
        ("write(id=text['id'], start=0, end=99, rule='x')", "not in the text"),
        ("write(id=text['id'], start=2, end=1, rule='x')", "not in the text"),
        ("write(id=text['id'], start=0, end=1)", "a rule whose name"),
        ("write(id=text['id'], start=0, end=1, rule='hush-hush!')", "a rule whose name"),
    ],
)
def test_find_from_a_broken_program_is_one_error_without_what_it_said(
    scanner, capfd, body, problem
):
    body = f"print('{SECRET}', file=sys.stderr)\n{body}"
    with pytest.raises(SetupError, match=problem) as caught:
        scanner(body, timeout_s=1.0 if "sleep" in body else 20.0).find([f"my {SECRET}"])
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value.__context__)
    assert caught.value.exit_code == 5
    assert SECRET not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("command", "problem"),
    [("/no/such/program", "cannot be started"), ("", "names no command"), ("'", "Quote it")],
)
def test_scanner_that_is_no_program_is_refused(command, problem):
    with pytest.raises(SetupError, match=problem):
        Scanner(command).find(["x"])


def test_redactor_with_a_scanner_takes_out_what_it_finds_too(tmp_path):
    redactor = Redactor(b"k", command=scanner_file(tmp_path, FINDS))
    texts = [f"é {SECRET}.", "clean", json.dumps({"password": "4fRq81xLzP0w", "x": SECRET}), None]
    redacted, changed = redactor.strings(texts)
    again, _ = redactor.strings(redacted)
    redactor.close()
    assert redacted[0].as_py().startswith("é [REDACTED:hush:")
    assert not any(SECRET in (text or "") for text in redacted.to_pylist())
    assert changed.tolist() == [True, False, True, False]
    assert redactor.hits == {"hush": 2, "assignment": 1}
    assert again.equals(redacted)


def test_redactor_that_has_not_begun_can_be_sent_to_another_process(tmp_path):
    redactor = pickle.loads(pickle.dumps(Redactor(b"k", command=scanner_file(tmp_path, FINDS))))
    assert SECRET not in redactor.text(SECRET)
    redactor.close()


def test_redactor_never_shows_a_scanner_what_the_rules_found(tmp_path):
    body = f"open({str(tmp_path / 'seen')!r}, 'a').write(text['text'])\nwrite(id=text['id'])"
    redactor = Redactor(b"k", command=scanner_file(tmp_path, body))
    assert "4fRq81xLzP0w" not in redactor.text("password: '4fRq81xLzP0w'")
    redactor.close()
    assert "4fRq81xLzP0w" not in (tmp_path / "seen").read_text()
    assert "[REDACTED:assignment:" in (tmp_path / "seen").read_text()
