// Make the copy button of a terminal example copy only the commands, without prompts and output.
document.addEventListener("click", (event) => {
  const button = event.target.closest && event.target.closest("[data-clipboard-target]");
  const code = button && document.querySelector(button.dataset.clipboardTarget);
  if (!code) return;
  const typed = [];
  let goesOn = false;
  for (const line of code.textContent.split("\n")) {
    if (goesOn || line.startsWith("$ ")) {
      typed.push(goesOn ? line : line.slice(2));
      goesOn = line.endsWith("\\");
    }
  }
  if (!typed.length) return; // no commands: this is a file, which the theme copies whole
  event.stopImmediatePropagation();
  event.preventDefault();
  copy(typed.join("\n")).then((isCopied) => {
    const words = JSON.parse(document.getElementById("__config").textContent).translations;
    const refused = document.documentElement.lang === "zh" ? "未能复制" : "Not copied";
    window.alert$.next(isCopied ? words["clipboard.copied"] : refused); // shown as by the theme's own copy button
  });
}, true);

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // The browser refused, or has no clipboard API: it exists only with https and on localhost.
  }
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  return isCopied;
}
