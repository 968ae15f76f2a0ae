"""An HTML page as the tests look at it."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "img", "br", "hr", "input", "base", "source", "use"}


class Page(HTMLParser):
    """Elements, attributes and visible text; refuses tags that do not nest."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict]] = []
        self.stack: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert not self.stack, f"never closed: {self.stack}"

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.stack and self.stack[-1] == tag, f"</{tag}> closes {self.stack[-3:]}"
            self.stack.pop()

    def handle_data(self, data):
        self.texts.setdefault(self.stack[-1] if self.stack else "", []).append(data)

    def text(self) -> str:
        return " ".join(" ".join(part) for tag, part in self.texts.items() if tag not in ("script", "style"))

    def find(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.elements if name == tag]
