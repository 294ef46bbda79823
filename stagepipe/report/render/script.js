"use strict";
// The page is complete without this script: it only adds the buttons, and opens all sections while printing.
const root = document.documentElement;
const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const theme = document.getElementById("theme");
theme.hidden = false;
theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; });
for (const button of document.querySelectorAll("button.copy")) {
  const code = button.parentElement.querySelector("code");
  button.hidden = false;
  button.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(code.textContent); button.textContent = "Copied"; }
    catch { getSelection().selectAllChildren(code); button.textContent = "Selected"; }
  });
}
let closed = [], before;
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const section of closed) section.open = true;
  before = root.dataset.theme; root.dataset.theme = "light";
});
addEventListener("afterprint", () => {
  for (const section of closed) section.open = false;
  if (before) root.dataset.theme = before; else delete root.dataset.theme;
});
