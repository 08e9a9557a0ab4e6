"""MkDocs hooks of ``make site`` for the Chinese pages: they translate the theme's texts and limit the navigation."""

from __future__ import annotations

from typing import Any


def on_page_context(context: dict, *, page: Any, config: Any, nav: Any) -> dict:
    """Set the theme's language, and limit the navigation of a Chinese page to the Chinese pages."""
    of_chinese = next(each for each in nav.items if each.title == "中文")
    config.theme["language"] = "zh" if _is_chinese(page) else "en"
    return {**context, "nav": _Contents(of_chinese.children if _is_chinese(page) else nav.items, nav.homepage)}


def on_post_page(output: str, *, page: Any, config: Any, **_: Any) -> str:
    """Translate texts on a Chinese page that the theme and mkdocs.yml have only in English."""
    for english, chinese in config.extra["chinese"].items() if _is_chinese(page) else ():
        output = output.replace(english, chinese)
    return output


def on_post_template(output: str, *, template_name: str, **_: Any) -> str:
    """Add Chinese to the 404 page, which is the same for both languages."""
    return output.replace("404 - Not found", '404 - Not found <span lang="zh">找不到页面</span>')


class _Contents:
    def __init__(self, items: list, homepage: Any) -> None:
        self.items, self.homepage = items, homepage

    def __iter__(self) -> Any:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


def _is_chinese(page: Any) -> bool:
    return page.file.src_uri.startswith("zh-CN/")
