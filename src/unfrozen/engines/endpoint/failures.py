"""Sorts what went wrong with a request: it may pass, a field of it is not known there, or nobody can help.

`Passing` is tried again. A rejected field is left out from then on. What the user has to mend (key, address,
model name, an empty account) is a UsageError that stops the run; everything else fails one episode.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from unfrozen.core.errors import ContextTooLong, EpisodeError, UnfrozenError, UsageError
from unfrozen.engines.endpoint.spec import EndpointSpec

OVERLOADED = (429, 503, 529)
_PASSING = (408, 409, 425, *OVERLOADED)
_REFUSED = (401, 403)
_NOT_THERE = (404, 405)
_MISSHAPEN = (400, 422)
_HOPELESS_CODES = frozenset(
    {"model_not_found", "invalid_model", "unsupported_parameter", "unsupported_value", "unknown_parameter"}
    | {"insufficient_quota", "invalid_api_key"}
)
"""Error codes that mean the same for every request, whatever status they come with."""
_NO_SUCH_MODEL = re.compile(r"\bmodel\b.*(not found|not exist|not a valid)|(invalid|unknown|no such) model", re.I)

_TOO_LONG = re.compile(r"(maximum|exceeds?|available)[^.]*\bcontext\b|prompt is too long", re.I)

_FORM = re.compile(r"response_format|json_schema")
_DROPPABLE = ("temperature", "seed", "logprobs", "return_token_ids")
_LIMITS = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
_NOT_KNOWN = re.compile(
    r"(un|not |n't |isn't )support|un(known|recogni[sz]ed|expected)|not (permitted|allowed|accepted)|"
    r"does(n't| not) (support|accept|allow)|extra (inputs|fields)|only the default|deprecated|no longer",
    re.I,
)


class Passing(Exception):
    """A request that failed in a way that may pass. `detail` is one line, without the key.

    `wait` is how many seconds the server asked for.
    """

    def __init__(self, detail: str, wait: float | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.wait = wait


class Unsent(Passing):
    """The server could not be reached: nothing was sent, nothing is billed."""


class Late(Passing):
    """No answer in time: a sign of overload, as a refusal would be."""


def rejected_field(status: int, said: str, error: Mapping[str, Any], body: Mapping[str, Any]) -> str | None:
    """The field of `body` that the server says it does not know, if a request without it would mean the same.

    Leaving out `temperature` does change the sampling: the engine says so in the log and in the summary.
    """
    if status not in _MISSHAPEN:
        return None
    named = str(error.get("param") or "")
    unknown = str(error.get("code") or "") in ("unsupported_parameter", "unsupported_value", "unknown_parameter")
    if not (unknown or _NOT_KNOWN.search(said)):
        return None
    for name in (*_DROPPABLE, *_LIMITS):
        if name in body and (named == name or re.search(rf"\b{name}\b", said)):
            return name
    return None


def without_field(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    """`body` without a rejected field; a limit goes by its other name."""
    rest = {key: value for key, value in body.items() if key != name}
    if name in _LIMITS and name in body:
        rest[_LIMITS[name]] = body[name]
    return rest


def refusal(
    spec: EndpointSpec, status: int, code: str, said: str, wait: float | None = None, sent_as: int | None = None
) -> Passing | UnfrozenError:
    """What an error with `status` comes to; `said` is one line. `sent_as` is the status of HTTP, where it differs."""
    line = f"{spec.base_url} answered {sent_as or status} for model {spec.model!r}: {said}"
    if status in _REFUSED or code == "invalid_api_key":
        way_out = (
            f"check the key in ${spec.api_key_env}"
            if spec.api_key_env
            else f"set {spec.section}.api_key_env to the name of the variable that holds the key"
        )
    elif status in _NOT_THERE or (status in _MISSHAPEN and _NO_SUCH_MODEL.search(said)):
        way_out = f"check {spec.section}.model and {spec.section}.base_url (which often ends in /v1)"
    elif 300 <= status < 400:
        way_out = f"{spec.section}.base_url has moved; give its new address"
    elif status == 402 or code == "insufficient_quota":
        way_out = "the account has nothing left to spend"
    elif status in _MISSHAPEN and _FORM.search(said) and (code in _HOPELESS_CODES or _NOT_KNOWN.search(said)):
        way_out = "it cannot hold a reply to a form: take `constrained` away from verbalized"
    elif code in _HOPELESS_CODES:
        way_out = f"check {spec.section}.model, max_tokens_key and extra_body"
    elif code == "context_length_exceeded" or (status in (*_MISSHAPEN, 413) and _TOO_LONG.search(said)):
        return ContextTooLong(line)
    elif status in _PASSING or status >= 500:
        return Passing(line, wait)
    else:
        return EpisodeError("infrastructure", line)
    return UsageError(f"{spec.section}: {line}; {way_out}")


def error_of(record: Any) -> Mapping[str, Any]:
    """The error object of an answer's JSON, whatever its form; {} where there is none."""
    if not isinstance(record, Mapping):
        return {}
    error = record.get("error", record)
    if isinstance(error, Mapping):
        return error
    return {"message": str(error)} if error else {}


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds that a server asks to be left alone: Retry-After as seconds or as an HTTP date, or None."""
    text = (headers.get("Retry-After") or headers.get("retry-after") or "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    try:
        when = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return max(0.0, (when - (now or datetime.now(UTC))).total_seconds())
