"""For ``make site``: the Chinese pages speak Chinese, in the theme's own words and in what is listed beside them."""

from __future__ import annotations

from typing import Any


def on_page_context(context: dict, *, page: Any, config: Any, nav: Any) -> dict:
    """Choose the theme's language, and of the contents those of that language."""
    of_chinese = next(each for each in nav.items if each.title == "中文")
    config.theme["language"] = "zh" if _is_chinese(page) else "en"
    return {**context, "nav": _Contents(of_chinese.children if _is_chinese(page) else nav.items, nav.homepage)}


def on_post_page(output: str, *, page: Any, config: Any, **_: Any) -> str:
    """Translate what the theme and mkdocs.yml say once for all pages."""
    for english, chinese in config.extra["chinese"].items() if _is_chinese(page) else ():
        output = output.replace(english, chinese)
    return output


def on_post_template(output: str, *, template_name: str, **_: Any) -> str:
    """A page that is not there has no language."""
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
