"""For ``make site``: the Chinese pages speak Chinese, in the theme's own words and in what is listed beside them."""

from __future__ import annotations

import re
from typing import Any

_CHINESE = "[\u3000-\u303f\u3400-\u9fff\uff00-\uffef]"
# A browser shows a line break as a space, which Chinese has none of; also around what is bold or a link.
_BREAK = re.compile(f"({_CHINESE}(?:</[^>]+>)*)\\n(?=(?:<[^>]+>)*{_CHINESE})")
_SCREEN = re.compile("(<pre.*?</pre>)", re.DOTALL)


def on_page_content(html: str, *, page: Any, **_: Any) -> str:
    """Join the lines of a Chinese sentence."""
    if not _is_chinese(page):
        return html
    return "".join(part if part.startswith("<pre") else _BREAK.sub(r"\1", part) for part in _SCREEN.split(html))


def on_page_context(context: dict, *, page: Any, config: Any, nav: Any) -> dict:
    """Choose the theme's language, and of the contents those of that language."""
    of_chinese = next(each for each in nav.items if each.title == "中文")
    config.theme["language"] = "zh" if _is_chinese(page) else "en"
    return {**context, "nav": _Contents(of_chinese.children if _is_chinese(page) else nav.items, nav.homepage)}


class _Contents:
    def __init__(self, items: list, homepage: Any) -> None:
        self.items, self.homepage = items, homepage

    def __iter__(self) -> Any:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


def _is_chinese(page: Any) -> bool:
    return page.file.src_uri.startswith("zh-CN/")
