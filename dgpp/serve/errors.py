"""The error every front end answers with, and its JSON object."""

from __future__ import annotations

from typing import Any

import orjson

from dgpp.errors import DgppError

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"


class ApiError(DgppError):
    """A request that is answered with an HTTP error.

    `type` defaults by `status`: below 500 the request is at fault, from 500 on the server.
    `param` is the path of the field at fault, such as `messages[2].content`; `code` is the
    machine-readable reason. `retry_after` (seconds) becomes a Retry-After header.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,  # noqa: A002 - the name on the wire
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type or (SERVER_ERROR if status >= 500 else INVALID_REQUEST)
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def object(self) -> dict[str, Any]:
        """`{"error": {message, type, param, code}}`, all four keys always present."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def json(self) -> bytes:
        """The body of the answer."""
        return orjson.dumps(self.object())


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the field `param` is of the wrong type, out of range or malformed."""
    return ApiError(400, message, param=param, code=code)


def unsupported(message: str, param: str) -> ApiError:
    """400 `unsupported_parameter`: known, well-formed perhaps, and not served."""
    return ApiError(400, message, param=param, code="unsupported_parameter")


def prompt_refused(error: DgppError, param: str) -> ApiError:
    """400: the template or the tokenizer refused what the field `param` holds."""
    return invalid(str(error), param)


def model_not_found(model: str) -> ApiError:
    """404 `model_not_found`."""
    message = f"The model {model!r} does not exist"
    return ApiError(404, message, param="model", code="model_not_found")


def overloaded(message: str = "The server is overloaded, try again later") -> ApiError:
    """503 `overloaded`: the queue or the connections are full."""
    return ApiError(503, message, code="overloaded", retry_after=1)


def timed_out(seconds: float) -> ApiError:
    """504 `request_timeout`: the answer was not complete within the request's own `timeout_s`."""
    message = f"The answer was not complete within timeout_s = {seconds:g}"
    return ApiError(504, message, param="timeout_s", code="request_timeout")


def shutting_down() -> ApiError:
    """503 `server_shutdown`."""
    return ApiError(503, "The server is shutting down", code="server_shutdown", retry_after=5)


def engine_failed(reason: str) -> ApiError:
    """503 `engine_failure`: the world is ending, `reason` names what died."""
    return ApiError(503, f"The engine has failed: {reason}", code="engine_failure")


def too_large(size: int, limit: int, by: str) -> ApiError:
    """413 `request_too_large`: `by` is the key, or what else, that sets the limit."""
    message = f"The request body has {size} bytes, the limit is {limit} ({by})"
    return ApiError(413, message, code="request_too_large")
