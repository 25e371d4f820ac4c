"""The chat template of a checkpoint: how messages become the text that it was trained on.

Templates are strangers' programs, and run in a sandbox. What a template may use is what transformers gives it: `messages`,
`add_generation_prompt`, the special words, `raise_exception`, `tojson`, `strftime_now`, loop controls, and blocks marked as `generation`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from conca.types import BadInput

__all__ = ["ChatTemplate"]

Message = Mapping[str, Any]


class Marked(Extension):
    """`{% generation %}`, which says what the model wrote, and renders what stands in it."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """What stands in the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A template that can be rendered.

    Args:
        text: in Jinja.
        variables: what it may name beside the messages, such as bos_token.
        now: what `strftime_now` says, so that a talk does not change its past at midnight.

    Raises:
        BadInput: for text that is no template.

    >>> ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}").render([{"role": "user", "content": "Hi"}])
    'user: Hi;'
    """

    def __init__(self, text: str, variables: Mapping[str, Any] | None = None, now: datetime | None = None) -> None:
        self.text, self.variables = text, dict(variables or {})
        self.now = datetime.now() if now is None else now
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Marked, loopcontrols]
        )
        environment.filters["tojson"] = as_json
        environment.globals |= {"raise_exception": refused, "strftime_now": self._clock()}
        try:
            self.template = environment.from_string(text)
        except TemplateError as error:
            raise BadInput(f"the chat template cannot be read: {one_line(error)}") from error

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
        """The text of a talk, and what stands before the next answer if that is asked for.

        Raises:
            BadInput: with the template's own words, where it refuses these messages.
        """
        copies = json.loads(json.dumps(list(messages)))
        given = {"tools": None, "documents": None} | self.variables
        try:
            return self.template.render(messages=copies, add_generation_prompt=add_generation_prompt, **given)
        except Exception as error:  # whatever a stranger's program does
            raise BadInput(f"the chat template refuses these messages: {one_line(error)}") from error

    def _clock(self) -> Callable[[str], str]:
        """`strftime_now`."""
        return lambda form: self.now.strftime(form)


def refused(message: str) -> None:
    """`raise_exception` of a template."""
    raise TemplateError(message)


def as_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """`tojson` of a template, which escapes nothing for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def one_line(error: Exception) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split()) or type(error).__name__
