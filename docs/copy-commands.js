// The copy button of a screen with commands copies what is to be typed: no prompt, and nothing that was printed.
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
  if (!typed.length) return; // a file, which is copied whole
  event.stopImmediatePropagation();
  event.preventDefault();
  copy(typed.join("\n")).then((isCopied) => {
    const words = JSON.parse(document.getElementById("__config").textContent).translations;
    const refused = document.documentElement.lang === "zh" ? "未能复制" : "Not copied";
    window.alert$.next(isCopied ? words["clipboard.copied"] : refused); // as the theme's own button says it
  });
}, true);

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Refused, or not there: a browser has it only for https and for the machine itself.
  }
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  return isCopied;
}
