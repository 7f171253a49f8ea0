"""Names by which the service is called, and web pages of other sites."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

from heterocc.runtime.serve.hosts import Hosts
from tests.runtime.serve.hostile import write_models
from tests.runtime.serve.process import COMMAND, RUNTIME_COMMAND, ServiceProcess


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST", "localhost.", ""])
def test_a_service_of_this_machine_takes_its_names(host: str) -> None:
    assert Hosts("127.0.0.1").refusal(host, "", "", True) is None


@pytest.mark.parametrize(
    "host", ["evil.example:8000", "10.0.0.5", "127.0.0.1.evil.example", "localhost.evil.example", "[::1].evil.example"]
)
@pytest.mark.parametrize("listening", ["127.0.0.1", "localhost", "::1"])
def test_a_service_of_this_machine_takes_no_other_name(listening: str, host: str) -> None:
    reason = Hosts(listening).refusal(host, "", "", False)
    assert reason and "--allowed-host" in reason


def test_a_service_that_others_reach_takes_any_name_but_not_from_a_web_page() -> None:
    hosts = Hosts("0.0.0.0")
    assert hosts.refusal("models.example", "", "", True) is None
    assert hosts.refusal("models.example", "http://models.example", "", True) is not None
    for safe in ("10.0.0.5:8000", "models:8000", "[fe80::1]:8000"):
        assert hosts.refusal(safe, f"http://{safe}", "same-origin", True) is None
    assert Hosts("0.0.0.0", ["models.example"]).refusal("models.example", "http://models.example", "", True) is None


def test_given_names_are_the_only_ones_and_a_star_is_any() -> None:
    hosts = Hosts("0.0.0.0", ["models.example"])
    assert hosts.refusal("models.example:80", "", "", True) is None
    assert hosts.refusal("127.0.0.1:80", "", "", False) is not None
    assert Hosts("127.0.0.1", ["*"]).refusal("evil.example", "http://other.example", "cross-site", True) is None


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pages_of_other_sites_may_ask_and_change_nothing(site: str) -> None:
    hosts = Hosts("127.0.0.1")
    assert hosts.refusal("localhost:8000", "", site, False) is None
    assert hosts.refusal("localhost:8000", "", site, True) is not None
    assert hosts.refusal("localhost:8000", "null", "", True) is not None


@pytest.mark.parametrize("command", [COMMAND, RUNTIME_COMMAND], ids=["heterocc", "heterocc-run"])
def test_a_rebound_name_reaches_nothing_of_a_service(tmp_path: Path, command: Sequence[str]) -> None:
    with ServiceProcess(write_models(tmp_path / "models"), command=command) as service:
        for path in ("/v2", "/status", "/v2/repository/models/numbers/unload"):
            for headers, status in (({"Host": "evil.example"}, 403), ({"Host": "["}, 403), ({}, 200)):
                data = b"" if path.endswith("unload") else None
                request = urllib.request.Request(f"http://{service.http}{path}", data, headers)
                try:
                    with urllib.request.urlopen(request) as response:
                        assert response.status == status
                except urllib.error.HTTPError as error:
                    with error:
                        assert error.code == status and b"--allowed-host" in error.read()


def test_a_request_with_two_names_of_the_service_is_refused(tmp_path: Path) -> None:
    with ServiceProcess(write_models(tmp_path / "models")) as service:
        connection = http.client.HTTPConnection(service.http)
        connection.putrequest("GET", "/v2", skip_host=True)
        for name in ("localhost", "evil.example"):
            connection.putheader("Host", name)
        connection.endheaders()
        answer = connection.getresponse()
        assert answer.status == 400 and b"several headers Host" in answer.read()
        connection.close()
