"""An S3 server: serves, is found by its folder, stays what it was; versitygw keeps what it stored through a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from real_servers import started
from s3_objects import BUCKET, client, make_bucket
from tallystick.errors import SetupError
from tallystick.jvm.resolver import CACHE
from tallystick.servers import S3Server
from tallystick.servers.s3 import MOTO, VERSITYGW, versitygw


@pytest.mark.parametrize("product", [VERSITYGW, MOTO])
def test_it_serves_and_another_process_finds_it(tmp_path: Path, product: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if product == VERSITYGW and versitygw() is None:
        pytest.skip("no versitygw here: sh scripts/ensure-versitygw.sh")
    monkeypatch.setattr("tallystick.servers.s3._found", lambda: product)
    with started(S3Server(tmp_path / "s3")) as server:
        make_bucket(server)
        client(server).put_object(Bucket=BUCKET, Key="kept", Body=b"kept")
        found = S3Server(server.folder)
        assert found.running
        assert (found.product, found.address) == (product, server.address)
        assert server.version
        server.kill()
        server.start()
        if product == VERSITYGW:
            assert client(server).get_object(Bucket=BUCKET, Key="kept")["Body"].read() == b"kept"


def test_without_any_server_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SetupError, match=r"pip install 'moto\[server\]', or go install github.com/versity/versitygw"):
        S3Server(tmp_path / "s3").start()


def test_versitygw_is_found_where_it_was_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setenv(CACHE, str(tmp_path))
    assert versitygw() is None
    built = tmp_path / "go" / "versitygw" / "v1.8.0" / "versitygw"
    built.parent.mkdir(parents=True)
    built.touch()
    assert versitygw() == built
    assert S3Server(tmp_path / "s3").product == VERSITYGW
