"""The few calls spectune makes to a running vLLM server besides completions. Loopback, blocking."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from typing import Any

from autotune.engines.exposition import Snapshot, parse_metrics
from autotune.errors import EngineDiedError

QUIET_SECONDS = 30.0
CONTROL_SECONDS = 60.0  # for all calls that generate nothing: a healthy server answers at once
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy


class RefusedError(EngineDiedError):
    """The server answered, with an HTTP error: to calls of ours, only a broken engine does."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Server:
    """Client of one server at `base_url`."""

    def __init__(self, base_url: str, request_timeout_seconds: float) -> None:
        self.base_url = base_url
        self.request_timeout_seconds = request_timeout_seconds

    def healthy(self) -> bool:
        """Whether /health answers 200 now."""
        try:
            with _DIRECT.open(f"{self.base_url}/health", timeout=5.0) as response:
                return bool(response.status == 200)
        except (OSError, http.client.HTTPException):
            return False

    def model_name(self) -> str:
        """The name under which the model is served."""
        return str(self._json("/v1/models")["data"][0]["id"])

    def has_chat_template(self, model: str) -> bool:
        """Ask for one token through the chat endpoint; a refusal that names the template is no."""
        body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        try:
            self._text("/v1/chat/completions", body, self.request_timeout_seconds)
        except RefusedError as error:
            if error.status == 400 and "template" in error.message:
                return False
            raise
        return True

    def quiet_snapshot(self) -> Snapshot:
        """Metrics once no request is in flight: counters move until the last step is done."""
        deadline = time.monotonic() + QUIET_SECONDS
        while True:
            snapshot = parse_metrics(self._text("/metrics"))
            if not snapshot.requests_in_flight or time.monotonic() > deadline:
                return snapshot
            time.sleep(0.05)

    def rpc(self, method: str) -> list[dict[str, Any]]:
        """Call a method of our worker extension; one answer per worker."""
        results: list[dict[str, Any]] = self._json("/collective_rpc", {"method": method})["results"]
        return results

    def _json(self, path: str, body: dict[str, Any] | None = None) -> Any:
        text = self._text(path, body)
        try:
            return json.loads(text)
        except ValueError as error:
            raise EngineDiedError(f"vLLM answers on {path} with no JSON: {text[:100]!r}") from error

    def _text(
        self, path: str, body: dict[str, Any] | None = None, seconds: float = CONTROL_SECONDS
    ) -> str:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.base_url + path, data, {"Content-Type": "application/json"}
        )
        try:
            with _DIRECT.open(request, timeout=seconds) as response:
                return str(response.read().decode())
        except urllib.error.HTTPError as error:
            reason = error.read().decode(errors="replace").strip()[:300]
            raise RefusedError(
                f"vLLM answers on {path} with HTTP {error.code}: {reason}", error.code
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise EngineDiedError(f"vLLM does not answer on {path}: {error}") from error
