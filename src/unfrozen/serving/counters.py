"""What the server counts, for Prometheus. Labels are served models and statuses only: nothing that a client chose."""

from __future__ import annotations

from collections.abc import Callable

from unfrozen.core.errors import UsageError

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Counters:
    """Counters of one server."""

    def __init__(self, in_flight: Callable[[], int], sessions: Callable[[], int], missing: Callable[[], int]) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
        except ImportError as error:
            raise UsageError('serving needs prometheus-client: pip install "unfrozen[serve]"') from error
        registry = CollectorRegistry()
        self._text: Callable[[], bytes] = lambda: generate_latest(registry)
        self.requests = Counter(
            "unfrozen_requests",
            "Chat completions answered, by model and HTTP status",
            ("model", "status"),
            registry=registry,
        )
        self.seconds = Histogram(
            "unfrozen_request_seconds", "Seconds until the answer", ("model",), buckets=_SECONDS, registry=registry
        )
        self.tokens = Counter("unfrozen_reply_tokens", "Tokens sampled for replies", ("model",), registry=registry)
        self.fallbacks = Counter(
            "unfrozen_unreadable_candidates", "Replies without readable candidates", ("model",), registry=registry
        )
        gauges = (
            ("unfrozen_requests_in_flight", "Requests accepted and not yet answered", in_flight),
            ("unfrozen_sessions", "Conversations remembered", sessions),
            ("unfrozen_log_missing_turns", "Turns that the log of episodes lacks", missing),
        )
        for name, about, value in gauges:
            Gauge(name, about, registry=registry).set_function(value)

    def text(self) -> bytes:
        """The exposition format."""
        return self._text()
