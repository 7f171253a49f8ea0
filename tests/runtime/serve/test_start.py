"""How the service starts: models that cannot be served, ports in use, TLS, names and versions."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from geventhttpclient.response import HTTPConnectionClosed
from tritonclient.utils import InferenceServerException
from typer.testing import CliRunner

from heterocc.artifacts.errors import FileMissingError, UsageError
from heterocc.artifacts.sign import sign_bundle
from heterocc.artifacts.signing.keys import create_key_pair
from heterocc.compiler.cli.main import app
from heterocc.runtime import serve
from heterocc.runtime.serve import ServeOptions
from heterocc.runtime.serve.errors import ServiceError
from heterocc.runtime.serve.options import Tls
from heterocc.runtime.serve.repository import Repository, latest
from tests.runtime import standin
from tests.runtime.serve.process import RUNTIME_COMMAND, ServiceProcess, X

Write = Callable[..., Path]


def refused(*arguments: object) -> str:
    """What `heterocc serve` prints if it cannot start."""
    done = CliRunner().invoke(app, ["serve", "--http-port", "0", "--grpc-port", "0", *map(str, arguments)])
    assert done.exit_code in (1, 2)
    return done.output


def start(options: ServeOptions) -> None:
    """Serve in this process; for what never gets ready."""
    from heterocc.runtime.serve import server

    server.asyncio.run(server._serve(options))


def test_versions_are_ordered_by_the_numbers_in_them() -> None:
    assert latest(["2", "10", "1"]) == "10"
    assert latest(["1.9", "1.10", "1.2-beta"]) == "1.10"


def test_bundles_and_folders_give_names_and_versions(tmp_path: Path) -> None:
    for name in ("a.hcb", "b/1.hcb", "b/2.hcb", ".hidden.hcb", "c/notes.txt", "d.onnx", "e/.hcb"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = Repository([tmp_path, tmp_path / "b" / "2.hcb"]).scan()
    assert {name: list(versions) for name, versions in found.items()} == {"2": ["1"], "a": ["1"], "b": ["1", "2"]}


def test_two_bundles_of_one_name_and_version_are_refused(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.hcb").touch()
    with pytest.raises(UsageError, match="are both version 1 of the model 'a'"):
        Repository([tmp_path / "one", tmp_path / "two"]).scan()
    with pytest.raises(FileMissingError, match=r"none\.hcb' does not exist"):
        Repository([tmp_path / "none.hcb"]).scan()


def test_a_service_without_models_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="there is no model to serve"):
        start(ServeOptions([tmp_path], http_port=0, grpc_port=0))


def test_a_type_without_a_datatype_in_the_protocol_is_refused(bundle_of: Write) -> None:
    bundle = bundle_of(standin.Model({"x": ("complex64", (2,))}, ("x",), ("x",), ()))
    with pytest.raises(ServiceError, match="input 'x' has the type complex64, for which"):
        start(ServeOptions([bundle], http_port=0, grpc_port=0))


def test_a_port_in_use_is_an_explained_error(bundle_of: Write) -> None:
    bundle = bundle_of(standin.chain(1))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServiceError, match="already in use") as caught:
            start(ServeOptions([bundle], http_port=port, grpc_port=0))
        assert caught.value.hint == "--http-port sets another port"
        with pytest.raises(ServiceError, match="already in use") as caught:
            start(ServeOptions([bundle], http_port=0, grpc_port=port))
        assert caught.value.hint == "--grpc-port sets another port"


def test_a_service_without_grpc_opens_one_port(tmp_path: Path) -> None:
    standin.write_bundle(tmp_path / "a.hcb", standin.chain(1))
    with ServiceProcess(tmp_path, "--no-grpc", command=RUNTIME_COMMAND) as service:
        assert service.record("listening")["grpc_port"] is None and service.get("/v2/models/a")
        sockets = [str(file.readlink()) for file in Path(f"/proc/{service.process.pid}/fd").iterdir()]
        inodes = {name[8:-1] for name in sockets if name.startswith("socket:")}
        listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        assert len([fields for fields in listening if fields[3] == "0A" and fields[9] in inodes]) == 1


def test_an_unsigned_bundle_is_refused_at_the_start_and_when_it_is_loaded_later(tmp_path: Path) -> None:
    key, public = create_key_pair(tmp_path / "service.key")
    models = tmp_path / "models"
    models.mkdir()
    unsigned = standin.write_bundle(tmp_path / "unsigned.hcb", standin.chain(1))
    assert "error[HC306]: the bundle is not signed" in refused(unsigned, "--trusted-key", public)
    assert "hint: --trusted-key FILE, or set HETEROCC_TRUSTED_KEYS" in refused(unsigned, "--require-signature")
    sign_bundle(standin.write_bundle(models / "m.hcb", standin.chain(3)), key)
    with (
        ServiceProcess(models, "--trusted-key", public, "--require-signature") as service,
        http_client.InferenceServerClient(service.http) as client,
    ):
        shutil.copy(unsigned, models / "n.hcb")
        shutil.copy(unsigned, models / "new")
        (models / "new").rename(models / "m.hcb")
        for name in ("m", "n"):
            with pytest.raises(InferenceServerException, match="HC306: the bundle is not signed"):
                client.load_model(name)
        x = http_client.InferInput("x", [16], "FP32").set_data_from_numpy(X)
        assert client.infer("m", [x]).as_numpy("v2").tolist() == (X + 3).tolist(), "the signed one stays"
        assert not client.is_model_ready("n")


def test_tls_files_that_cannot_be_used_are_explained(bundle_of: Write, tmp_path: Path) -> None:
    bundle, wrong = bundle_of(standin.chain(1)), tmp_path / "wrong.pem"
    wrong.write_text("not PEM")
    for tls in (Tls(tmp_path / "none.pem", wrong), Tls(wrong, wrong)):
        with pytest.raises(ServiceError, match="the TLS files cannot be used"):
            start(ServeOptions([bundle], http_port=0, grpc_port=0, tls=tls))
    text = refused(bundle, "--tls-cert", wrong)
    assert "error[HC120]: TLS needs both --tls-cert and --tls-key" in text


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, bundle_of: Write) -> None:
    monkeypatch.setattr(serve, "_PACKAGES", {"no_such_module.part": "no-such-package"})
    text = refused(bundle_of(standin.chain(1)))
    assert "error[HC502]: the service needs packages that are not installed: no-such-package" in text
    assert "hint: pip install no-such-package" in text


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate authority, and certificates of a server and a client that it signed."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificates, is not on the PATH")
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test authority")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
    for name in ("server", "client"):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out",
            f"{name}.pem", "-days", "2", "-extfile", "names",
        )  # fmt: skip
    return folder


def ask(client: Any, library: Any) -> np.ndarray:
    given = library.InferInput("x", [16], "FP32")
    given.set_data_from_numpy(X)
    result: np.ndarray = client.infer("m", [given]).as_numpy("v0")
    return result


def test_both_ports_speak_tls_and_ask_clients_for_a_certificate(authority: Path, bundle_of: Write) -> None:
    def files(*names: str) -> Sequence[str]:
        return [str(authority / name) for name in names]

    cert, key, ca = files("server.pem", "server.key", "ca.pem")
    arguments = ("--tls-cert", cert, "--tls-key", key, "--tls-client-ca", ca)
    with ServiceProcess(bundle_of(standin.chain(1)), *arguments) as service:
        client_cert, client_key = files("client.pem", "client.key")
        trusted = {"root_certificates": ca, "private_key": client_key, "certificate_chain": client_cert}
        with grpc_client.InferenceServerClient(service.grpc, ssl=True, **trusted) as client:
            np.testing.assert_array_equal(ask(client, grpc_client), X + 1)
        options = {"keyfile": client_key, "certfile": client_cert, "ca_certs": ca}
        with http_client.InferenceServerClient(service.http, ssl=True, ssl_options=options) as client:
            np.testing.assert_array_equal(ask(client, http_client), X + 1)
        # Without a certificate.
        with (
            grpc_client.InferenceServerClient(service.grpc, ssl=True, root_certificates=ca) as client,
            pytest.raises(InferenceServerException),
        ):
            client.get_server_metadata(client_timeout=5)
        with (
            http_client.InferenceServerClient(service.http, ssl=True, ssl_options={"ca_certs": ca}) as client,
            pytest.raises((OSError, HTTPConnectionClosed)),
        ):
            client.get_server_metadata()
