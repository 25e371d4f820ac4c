"""Files of weights: what is read, one at a time, and what is refused in one line."""

import json
import pickle

import pytest
import torch
from safetensors.torch import save_file

from conca.models.tensor_files import TensorFiles, read_json
from conca.types import BadInput

WEIGHTS = {
    "a.weight": torch.randn(3, 4, dtype=torch.bfloat16),
    "a.bias": torch.randn(3, dtype=torch.float32),
    "b": torch.randn(2, 1, 2, dtype=torch.float16),
    "c": torch.tensor(2.5, dtype=torch.float64),
    "d": torch.zeros(0, 3),
    "e": torch.arange(5),
}


def whole(folder, name):
    if name.endswith(".bin"):
        torch.save(WEIGHTS, folder / name)
    else:
        save_file(WEIGHTS, folder / name, metadata={"format": "pt"})


def sharded(folder, name, parts=2):
    """The weights in shards, with their index."""
    stem, _, end = name.partition(".")
    index = {}
    for i in range(parts):
        file = f"{stem}-{i + 1:05}-of-{parts:05}.{end}"
        own = {key: WEIGHTS[key] for key in [*WEIGHTS][i::parts]}
        torch.save(own, folder / file) if end == "bin" else save_file(own, folder / file)
        index |= dict.fromkeys(own, file)
    (folder / f"{name}.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": index}))
    return index


@pytest.mark.parametrize("name", ["model.safetensors", "consolidated.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("put", [whole, sharded])
def test_what_is_written_is_read(name, put, tmp_path):
    index = put(tmp_path, name) or dict.fromkeys(WEIGHTS, name)
    with TensorFiles(tmp_path) as files:
        assert sorted(files.names()) == sorted(WEIGHTS)
        seen = [*files.by_file()]
        assert {key: file for file, keys in seen for key in keys} == index
        for _, keys in seen:
            for key in keys:
                assert (files.shape(key), files.dtype(key)) == (tuple(WEIGHTS[key].shape), WEIGHTS[key].dtype)
                tensor = files.tensor(key)
                assert torch.equal(tensor, WEIGHTS[key])
                if tensor.ndim:
                    assert torch.equal(files.tensor(key, slice(1, 3)), WEIGHTS[key][1:3])
                assert tensor.dtype == WEIGHTS[key].dtype
                assert tensor.untyped_storage().nbytes() == tensor.nbytes  # nothing else of the file is kept
        with pytest.raises(BadInput, match=r"there is no tensor 'a\.wight'; did you mean 'a\.weight'"):
            files.tensor("a.wight")
    assert files.open is None


def test_safetensors_come_first_and_an_index_before_all(tmp_path):
    sharded(tmp_path, "model.safetensors")
    torch.save({"other": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
    assert "other" not in TensorFiles(tmp_path).names()


def test_one_pickle_is_open_at_a_time(tmp_path, monkeypatch):
    index = sharded(tmp_path, "pytorch_model.bin", parts=3)
    opened, load = [], torch.load

    def watched(path, **options):
        opened.append(path.name)
        assert options["weights_only"]
        return load(path, **options)

    monkeypatch.setattr(torch, "load", watched)
    files = TensorFiles(tmp_path)
    opened.clear()
    for file, keys in files.by_file():
        for key in keys:
            files.tensor(key)
            assert files.open[0] == file
    assert len(opened) == len(set(opened)) == len(set(index.values()))


def test_files_of_the_old_format_of_torch(tmp_path):
    torch.save(WEIGHTS, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert torch.equal(TensorFiles(tmp_path).tensor("b"), WEIGHTS["b"])


class Code:
    def __reduce__(self):
        return print, ("a pickle ran",)


@pytest.mark.parametrize("new", [True, False])
def test_a_pickle_with_code_is_refused_and_not_run(new, tmp_path, capsys):
    torch.save({"a": Code()}, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=new)
    with pytest.raises(BadInput, match=r"pytorch_model\.bin: it holds code or objects beside tensors") as error:
        TensorFiles(tmp_path)
    assert "\n" not in str(error.value)
    assert "a pickle ran" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "thing",
    [
        [1, 2],
        {"model": {"a": torch.zeros(1)}},
        {"a": 3},
        {5: torch.zeros(1)},
        {"a": torch.eye(2).to_sparse()},
        {"a": torch.zeros(1, device="meta")},
    ],
)
def test_a_pickle_of_something_else(thing, tmp_path):
    torch.save(thing, tmp_path / "pytorch_model.bin")
    with pytest.raises(BadInput, match="is no table of tensors by name"):
        TensorFiles(tmp_path)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(
        BadInput, match=r"no weights; looked for model\.safetensors, consolidated\.safetensors, pytorch"
    ):
        TensorFiles(tmp_path)
    with pytest.raises(BadInput, match="there is no such folder"):
        TensorFiles(tmp_path / "not")
    sharded(tmp_path, "model.safetensors")
    (tmp_path / "model-00002-of-00002.safetensors").rename(tmp_path / "kept")
    with pytest.raises(BadInput, match=r"the shard 'model-00002-of-00002\.safetensors' is missing, which model"):
        TensorFiles(tmp_path)
    (tmp_path / "kept").rename(tmp_path / "model-00002-of-00002.safetensors")
    save_file({"a.bias": WEIGHTS["a.bias"]}, tmp_path / "model-00002-of-00002.safetensors")
    with pytest.raises(BadInput, match="'c', which the index says is there, is missing"):
        TensorFiles(tmp_path)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{}", "says in no 'weight_map' where the tensors are"),
        ('{"weight_map": {"a": 1}}', "says in no 'weight_map' where the tensors are"),
        ('{"weight_map": {"a": "../model.safetensors"}}', "names '../model.safetensors', which is not in the folder"),
        ("[]", "holds no table of names and values"),
        ("{", "cannot be read"),
    ],
)
def test_an_index_that_is_none(text, line, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(BadInput, match=line):
        TensorFiles(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_files_that_are_cut_or_damaged(name, tmp_path):
    """At every length, and with any byte of the header turned over, a line says so, or the shapes are still readable."""
    whole(tmp_path, name)
    data = (tmp_path / name).read_bytes()
    for cut in [0, 1, 7, 8, 9, 100, len(data) // 2, len(data) - 1]:
        (tmp_path / name).write_bytes(data[:cut])
        with pytest.raises(BadInput, match=r"not a whole|holds code") as error:
            TensorFiles(tmp_path)
        assert "\n" not in str(error.value)
    for at in range(0, min(len(data), 600), 3):
        (tmp_path / name).write_bytes(data[:at] + bytes([data[at] ^ 0x15]) + data[at + 1 :])
        try:
            files = TensorFiles(tmp_path)
            for key in files.names():
                assert tuple(files.tensor(key).shape) == files.shape(key)
        except BadInput as error:
            assert "\n" not in str(error)


def test_a_type_that_is_not_read(tmp_path):
    save_file({"a": torch.zeros(2).to(torch.float8_e4m3fn)}, tmp_path / "model.safetensors")
    with pytest.raises(BadInput, match="the tensor 'a' is F8_E4M3, which is not read"):
        TensorFiles(tmp_path)


def test_a_file_that_shrinks_while_it_is_read(tmp_path):
    whole(tmp_path, "model.safetensors")
    files = TensorFiles(tmp_path)
    data = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[:-300])
    with pytest.raises(BadInput, match="ends in the middle of"):
        for key in files.names():
            files.tensor(key)


def test_json(tmp_path):
    (tmp_path / "x.json").write_bytes(pickle.dumps(1))
    with pytest.raises(BadInput, match=r"x\.json: cannot be read"):
        read_json(tmp_path / "x.json")
    (tmp_path / "x.json").write_text("[" * 100_000)
    with pytest.raises(BadInput, match=r"x\.json: cannot be read"):
        read_json(tmp_path / "x.json")
