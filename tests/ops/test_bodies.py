"""The registry of kernels: loaded once, at first use; a loader that fails leaves the plain body."""

import pytest

from conca.ops import bodies


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(bodies, "_loaders", {})
    monkeypatch.setattr(bodies, "_loaded", {})


def test_a_loader_runs_once_and_late(registry):
    calls = []
    bodies.register("add", "cpu", lambda: calls.append(1) or "kernel")
    assert bodies.registered() == (("add", "cpu"),)
    assert not calls
    assert bodies.kernel("add", "cpu") == bodies.kernel("add", "cpu") == bodies.required("add", "cpu") == "kernel"
    assert calls == [1]


def test_a_missing_package_leaves_the_plain_body(registry):
    def loader():
        raise ImportError

    bodies.register("add", "cpu", loader)
    assert bodies.kernel("add", "cpu") is None
    assert bodies.kernel("add", "cuda") is None
    with pytest.raises(RuntimeError, match="no kernel on cpu"):
        bodies.required("add", "cpu")


def test_plain_bodies_are_asked_for_in_a_context(registry):
    bodies.register("add", "cpu", lambda: "kernel")
    with bodies.plain_bodies():
        assert bodies.plain_wanted()
        assert bodies.kernel("add", "cpu") is None
        assert bodies.required("add", "cpu") == "kernel"
    assert bodies.kernel("add", "cpu") == "kernel"


def test_a_later_registration_replaces_an_earlier_one(registry):
    bodies.register("add", "cpu", lambda: "old")
    assert bodies.kernel("add", "cpu") == "old"
    bodies.register("add", "cpu", lambda: "new")
    assert bodies.kernel("add", "cpu") == "new"
