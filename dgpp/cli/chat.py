"""`dgpp chat`: talk to a running server from the terminal."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from dgpp.cli.server_client import KeyOption, UrlOption
from dgpp.cli.usual import usual_url

if TYPE_CHECKING:
    from rich.console import Console

    from dgpp.cli.chat_client import ChatClient, Message, Options, Piece

app = typer.Typer(add_completion=False)

_HELP = "/reset forgets the conversation, /quit ends it; Ctrl-C cancels an answer."

# What a terminal would obey rather than show: C0 and C1 controls except tab and newline.
_CONTROLS = dict.fromkeys((*range(32), *range(127, 160)), "\N{REPLACEMENT CHARACTER}")
_CONTROLS |= {ord("\t"): "\t", ord("\n"): "\n", ord("\r"): ""}


@app.command()
def chat(
    url: UrlOption = "",
    api_key: KeyOption = "",
    once: Annotated[
        str | None, typer.Option("--once", help="Ask this, print the answer, end.")
    ] = None,
    system: Annotated[str | None, typer.Option("--system", help="The system message.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Longest answer, in tokens.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", min=0.0, max=2.0, help="0 is greedy; default: the model's."),
    ] = None,
) -> None:
    """Talk to a running server. Without --once: a conversation, line by line.

    Exit status: 0 answered or left, 1 no server or no answer, 130 cancelled.
    """
    from rich.console import Console

    from dgpp.cli.chat_client import ChatClient, ChatError, Message, Options

    console = Console(highlight=False, soft_wrap=True)
    history = [Message("system", system)] if system is not None else []
    options = Options(max_tokens, temperature)
    client = ChatClient(url or usual_url(), api_key)
    talk = Conversation(console, client, client.model(), history, options)
    if once is None:
        _loop(talk)
    elif not talk.say(once):
        raise ChatError(f"{client.url} answered nothing")


class Conversation:
    """A conversation with one model. `history` grows by whole turns: a question that got no
    answer is forgotten."""

    def __init__(
        self,
        console: Console,
        client: ChatClient,
        model: str,
        history: list[Message],
        options: Options,
    ) -> None:
        self.console = console
        self.client = client
        self.model = model
        self.history = history
        self._opening = list(history)
        self._options = options

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.history = list(self._opening)

    def say(self, text: str) -> str:
        """Ask, print the answer while it comes, and return it. Ctrl-C leaves what came so far in
        the history and is raised again. Raises ChatError."""
        from dgpp.cli.chat_client import Message

        asked = [*self.history, Message("user", text)]
        answer = ""
        try:
            with closing(self.client.ask(self.model, asked, self._options)) as pieces:
                for piece in pieces:
                    self._print(piece)
                    answer += "" if piece.reasoning else piece.text
        finally:
            if answer:
                self.history = [*asked, Message("assistant", answer)]
            self.console.print()
        return answer

    def _print(self, piece: Piece) -> None:
        if not self.console.is_terminal:
            text = "" if piece.reasoning else piece.text
            self.console.file.write(text)
        elif piece.reasoning:
            self.console.print(piece.text.translate(_CONTROLS), end="", style="dim", markup=False)
        else:
            # Written as it is: rich would expand tabs.
            self.console.file.write(piece.text.translate(_CONTROLS))
        self.console.file.flush()


def _loop(talk: Conversation) -> None:
    from dgpp.cli.chat_client import ChatError

    if sys.stdin.isatty():
        import readline  # noqa: F401  gives input() line editing and a history

    talk.console.print(f"{talk.model} at {talk.client.url}. {_HELP}", style="dim", markup=False)
    while (line := _read_line(talk.console)) is not None:
        if line == "/quit":
            return
        if line == "/reset":
            talk.reset()
        elif line.startswith("/"):
            talk.console.print(_HELP, style="dim", markup=False)
        elif line:
            try:
                talk.say(line)
            except KeyboardInterrupt:
                talk.console.print("cancelled", style="dim")
            except ChatError as error:
                talk.console.print(str(error), style="red", markup=False)


def _read_line(console: Console) -> str | None:
    """The next line without the space around it; None when there are no more."""
    try:
        return input("> ").strip()
    except EOFError:
        console.print()
        return None
    except KeyboardInterrupt:
        console.print("\nCtrl-D or /quit ends the conversation.", style="dim")
        return ""
