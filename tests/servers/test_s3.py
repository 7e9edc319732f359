"""An S3 server: serves, is found by its folder, stays what it was; versitygw keeps what it stored through a kill."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from real_servers import started
from s3_objects import BUCKET, client, make_bucket
from tallystick.errors import SetupError
from tallystick.servers import S3Server
from tallystick.servers.s3 import MOTO, VERSITYGW


@pytest.mark.parametrize("product", [VERSITYGW, MOTO])
def test_it_serves_and_another_process_finds_it(tmp_path: Path, product: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if product == VERSITYGW and shutil.which(VERSITYGW) is None:
        pytest.skip("versitygw is not on the PATH")
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
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SetupError, match=r"pip install 'moto\[server\]', or go install github.com/versity/versitygw"):
        S3Server(tmp_path / "s3").start()
