"""Stands in for the http actor: takes requests from a test and keeps what came back."""

from __future__ import annotations

from actors.actor import Actor
from actors.messages.http_scheduler import Cancel
from actors.messages.http_tokenizer import Forget, Prepare
from actors.messages.scheduler_http import Refused
from actors.messages.tokenizer_http import Deltas, Rejected


class Front(Actor):
    """`texts` and `ends` by (request, choice); `refused` by request."""

    def __init__(self, context):
        super().__init__(context)
        self.texts = {}
        self.ends = {}
        self.counts = {}
        self.refused = {}
        self.gone = set()

    def submit(self, request, seed):
        self.context.post("http>tokenizer", Prepare(request, seed))

    def leave(self, request):
        self.gone.add(request)
        self.context.post("http>tokenizer", Forget(request))
        self.context.post("http>scheduler", Cancel(request))

    def receive(self, channel, message, arrays):
        match message:
            case Deltas():
                for delta in message.items:
                    key = (delta.id, delta.choice)
                    assert key not in self.ends, f"{key} spoke after its end"
                    self.texts[key] = self.texts.get(key, "") + delta.text
                    if delta.finish is not None:
                        self.ends[key] = delta.finish
                        self.counts[key] = delta.completion_tokens
            case Rejected() | Refused():
                assert message.id not in self.refused
                self.refused[message.id] = message.code
                self.context.post("http>tokenizer", Forget(message.id))
