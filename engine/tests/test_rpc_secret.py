"""Where the secret of trackers and servers comes from, and what proves it."""

import pytest

from tvmfast.tuning import secret


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TVMNOTES_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(secret.VARIABLE, raising=False)
    return tmp_path / "cache"


def test_the_secret_is_made_once_in_a_file_of_the_users_alone(cache, monkeypatch):
    text = secret.find()
    assert len(text) == 48 and secret.find() == text
    assert secret.file().stat().st_mode & 0o777 == 0o600
    assert [each.name for each in cache.iterdir()] == ["rpc_secret"]
    assert secret.told().endswith(f"export {secret.VARIABLE}={text}")
    assert secret.find("given") == "given" and secret.find("none") is None
    monkeypatch.setenv(secret.VARIABLE, "of the variable")
    assert secret.find() == "of the variable" and secret.find("given") == "given" and not secret.told()
    monkeypatch.delenv(secret.VARIABLE)
    monkeypatch.setenv(secret.VARIABLE.replace("TVMFAST", "TVMNOTES"), "as it was spelled")
    assert secret.find() == "as it was spelled" and not secret.told()


def test_a_file_that_others_can_read_is_refused():
    text = secret.find()
    secret.file().chmod(0o640)
    with pytest.raises(PermissionError, match="rpc_secret has to be yours, and readable for nobody else: remove it"):
        secret.find()
    secret.file().unlink()
    assert secret.find() != text


@pytest.mark.parametrize("given", [None, 5, "", "\ud800", "0" * 64, ["x"]])
def test_a_proof_is_of_one_secret_and_one_number(given):
    right = secret.proof("secret", "number", 9190)
    assert secret.proves(right, "secret", "number", 9190)
    assert not secret.proves(right, "another", "number", 9190)
    assert not secret.proves(right, "secret", "another", 9190)
    assert not secret.proves(given, "secret", "number", 9190)
