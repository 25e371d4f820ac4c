"""IDs, folders and files: what huggingface_hub has in its cache is found without a network; what cannot be had is one line."""

import pytest
from huggingface_hub import constants
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from conca.models.hub import located
from conca.types import BadInput

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and no network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def put(cache, name, files, commit=COMMIT):
    """A snapshot as huggingface_hub leaves one: the files of a commit, and the branch that names it."""
    home = cache / f"models--{name.replace('/', '--')}"
    folder = home / "snapshots" / commit
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("{}")
    (home / "refs").mkdir(exist_ok=True)
    (home / "refs" / "main").write_text(commit)
    return folder


def test_what_lies_on_the_disk_comes_first(tmp_path, cache, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "state-spaces" / "mamba").mkdir(parents=True)
    (tmp_path / "small.gguf").touch()
    (tmp_path / "model.safetensors").touch()
    assert located("state-spaces/mamba").is_dir()
    assert located(tmp_path / "small.gguf") == tmp_path / "small.gguf"
    with pytest.raises(BadInput, match=r"model\.safetensors: name the folder of the checkpoint, or a \.gguf file"):
        located(tmp_path / "model.safetensors")


@pytest.mark.parametrize("files", [["model.safetensors"], ["consolidated.safetensors"], ["pytorch_model.bin"]])
def test_a_cached_id_needs_no_network(cache, files):
    folder = put(cache, "a-b/c.d", ["config.json", *files])
    assert located("a-b/c.d") == folder
    assert located("a-b/c.d", COMMIT) == folder
    with pytest.raises(BadInput, match=r"^a-b/c\.d at revision v2: is not in the cache"):
        located("a-b/c.d", "v2")


def test_a_file_of_an_id(cache):
    folder = put(cache, "a/b", ["deep/x-Q8_0.gguf"])
    assert located("a/b/deep/x-Q8_0.gguf") == folder / "deep/x-Q8_0.gguf"
    with pytest.raises(BadInput, match=r"^a/b: is not in the cache, or not whole; this is offline"):
        located("a/b/other.gguf")


def test_offline_an_id_that_is_not_in_the_cache(cache):
    with pytest.raises(BadInput, match=r"^nobody/nothing: is not in the cache, or not whole; this is offline") as error:
        located("nobody/nothing")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name", ["/no/such", "a/b/c", "./a", "a b", "", "a/../b", "~/nothing/here", "x.gguf/y/z", "gpt2"]
)
def test_what_is_neither_path_nor_id(cache, name):
    with pytest.raises(BadInput, match="there is no such folder, and an ID reads owner/name"):
        located(name)


def failing(kind):
    return kind.__new__(kind, "some\nlines")  # their constructors want an answer of whatever client it is


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (lambda: failing(GatedRepoError), "a/b: is gated; accept its terms"),
        (lambda: failing(RepositoryNotFoundError), "a/b: there is no such checkpoint, or it is private"),
        (lambda: failing(RevisionNotFoundError), "a/b: there is no such revision"),
        (lambda: ConnectionError("no\nroute"), "a/b: is not in the cache and cannot be downloaded .*ConnectionError"),
    ],
)
def test_what_the_network_says_is_one_line(cache, monkeypatch, error, line):
    def refuse(*args, **kwargs):
        raise error()

    monkeypatch.setattr("conca.models.hub.reachable", lambda: True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("conca.models.hub.HfApi.list_repo_files", refuse)
    monkeypatch.setattr("conca.models.hub.snapshot_download", refuse)
    with pytest.raises(BadInput, match=line) as caught:
        located("a/b")
    assert "\n" not in str(caught.value)


def test_one_kind_of_weights_is_downloaded(cache, monkeypatch, tmp_path):
    """Where the same weights stand there twice, as in Mamba-Codestral, they are not fetched twice."""
    asked = []
    there = ["config.json", "model-00001-of-00002.safetensors", "consolidated.safetensors", "pytorch_model.bin"]
    monkeypatch.setattr("conca.models.hub.reachable", lambda: True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("conca.models.hub.HfApi.list_repo_files", lambda *args, **kwargs: there)
    monkeypatch.setattr(
        "conca.models.hub.snapshot_download", lambda *a, allow_patterns, **k: asked.append(allow_patterns) or tmp_path
    )
    for kinds in ("model*.safetensors", "consolidated*.safetensors", "pytorch_model*.bin"):
        assert located("a/b") == tmp_path
        assert [p for p in asked.pop() if p.endswith((".safetensors", ".bin"))] == [kinds]
        assert not asked
        there.pop(1)


def test_a_network_that_is_not_there_is_known_at_once(cache, monkeypatch):
    """No name is looked up: a port of this machine where nobody listens."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("conca.models.hub.getproxies", dict)
    folder = put(cache, "a/b", ["config.json", "model.safetensors"])
    assert located("a/b") == folder
    with pytest.raises(BadInput, match=r"^c/d: is not in the cache, and http://127\.0\.0\.1:9 cannot be reached"):
        located("c/d")
