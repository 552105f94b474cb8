"""The embeddings seam: texts in, unit vectors out. An offline model by default, any embeddings endpoint by choice.

The offline model is a static one (a vector per token, averaged): it ships in a wheel, needs no torch and no
network, and embeds thousands of short replies a second. It knows words, not their order: replies that differ by
a "not" lie close. Where that matters, name an endpoint.
"""

from __future__ import annotations

import http.client
import json
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from unfrozen.core.errors import ResumableError, UsageError
from unfrozen.core.keys import read_key
from unfrozen.engines.endpoint.failures import retry_after

Vectors = npt.NDArray[np.float32]

_PASSING = (408, 409, 429, 500, 502, 503, 504)
_LONGEST_PAUSE = 60.0


class Embedder(Protocol):
    """Turns texts into vectors. `name` stands in every result: distances of two embedders are not comparable."""

    @property
    def name(self) -> str: ...

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Vectors of length 1, shape (len(texts), dimensions)."""
        ...


class OfflineEmbedder:
    """WordLlama's static vectors (256 dimensions), from its wheel. Raises UsageError where it is not installed."""

    name = "wordllama/l2_supercat_256"

    def __init__(self) -> None:
        root = logging.getLogger()
        handlers, level = list(root.handlers), root.level
        try:
            import wordllama
        except ImportError as error:
            raise UsageError(
                'replies are compared by an embedding model, which is not installed: pip install "unfrozen[diagnose]", '
                "or name an embeddings endpoint"
            ) from error
        finally:
            # The package turns on INFO logs for the whole process as it is imported.
            root.handlers[:] = handlers
            root.setLevel(level)
        # Its tokenizer lies in the wheel, in the place where a cache would be looked for.
        folder = Path(wordllama.__file__).parent
        self._model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Average the vectors of each text's tokens."""
        return _unit(self._model.embed(_spoken(texts)))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like any other: the key may not go elsewhere."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


@dataclass(frozen=True, slots=True)
class EndpointEmbedder:
    """An OpenAI-compatible `/embeddings` endpoint. The key is read from the variable named by `api_key_env`.

    Blocks while it waits: call it in a thread from an event loop. `timeout` is in seconds a request; what may pass
    (connection errors, 408, 409, 429, 5xx) is tried `max_retries` more times, after a growing pause or as long as
    the server's Retry-After says.
    """

    base_url: str
    model: str
    api_key_env: str | None = None
    batch: int = 128
    timeout: float = 60.0
    max_retries: int = 4

    @property
    def name(self) -> str:
        """The model and where it is served."""
        return f"{self.model} at {self.base_url}"

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Ask the endpoint, `batch` texts a request.

        Raises UsageError where no request could do better (key, address, model), ResumableError where the
        endpoint stayed out of reach.
        """
        rows: list[Any] = []
        for start in range(0, len(texts), self.batch):
            rows += self._ask(_spoken(texts[start : start + self.batch]))
        return _unit(np.asarray(rows, dtype=np.float32).reshape(len(texts), -1))

    def _ask(self, texts: Sequence[str]) -> list[Any]:
        headers = {"Content-Type": "application/json"}
        if self.api_key_env is not None:
            headers["Authorization"] = f"Bearer {read_key(self.api_key_env, 'embeddings.api_key_env', self.base_url)}"
        body = json.dumps({"model": self.model, "input": list(texts)}).encode()
        request = urllib.request.Request(f"{self.base_url.rstrip('/')}/embeddings", body, headers)
        said = "no request was made"
        for attempt in range(self.max_retries + 1):
            pause = float(min(2**attempt, _LONGEST_PAUSE))
            try:
                with _OPENER.open(request, timeout=self.timeout) as response:
                    return self._rows(response.read(), len(texts))
            except urllib.error.HTTPError as error:
                said = f"it answered {error.code}"
                if error.code not in _PASSING:
                    raise UsageError(
                        f"embeddings: {self.base_url} {said} for model {self.model!r}; check the key, the model and "
                        "the address (which often ends in /v1)"
                    ) from None
                asked = retry_after({"Retry-After": error.headers.get("Retry-After") or ""})
                pause = pause if asked is None else min(asked, _LONGEST_PAUSE)
            except (OSError, http.client.HTTPException) as error:
                said = f"it cannot be reached ({error})"
            if attempt < self.max_retries:
                time.sleep(pause)
        raise ResumableError(f"embeddings: {self.base_url} failed {self.max_retries + 1} times; at last {said}")

    def _rows(self, answer: bytes, count: int) -> list[Any]:
        try:
            data = sorted(json.loads(answer)["data"], key=lambda item: item["index"])
            rows = [[float(x) for x in item["embedding"]] for item in data]
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"embeddings: {self.base_url} answered without embeddings: {error!r}") from error
        if len(rows) != count or len({len(row) for row in rows}) > 1 or not np.isfinite(rows).all():
            raise UsageError(f"embeddings: {self.base_url} gave {len(rows)} vectors for {count} texts, or unequal ones")
        return rows


def _spoken(texts: Sequence[str]) -> list[str]:
    """Silence as a full stop: an empty text has no vector, and many servers refuse it."""
    return [text if text.strip() else "." for text in texts]


def _unit(vectors: Vectors) -> Vectors:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(norms > 0, norms, 1.0), dtype=np.float32)
