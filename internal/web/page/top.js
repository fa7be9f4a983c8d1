// What is at the top of the page, whatever it shows: the theme, and whether it has a connection.

import { button, setText } from "./dom.js";
import { printable } from "./format.js";
import { peer } from "./place.js";
import { isDark, paint } from "./terminal.js";

const chosen = localStorage.getItem("exec-server theme");
if (chosen) document.documentElement.dataset.theme = chosen;

export function themeButton() {
  return button("Theme", changeTheme, { "aria-label": "Change between light and dark" });
}

function changeTheme() {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("exec-server theme", theme);
  paint();
}

const texts = { connecting: () => "connecting", connected: () => "connected", late: () => "waiting for " + peer, lost: (reason) => "not connected: " + printable(reason) };

// showState shows the state of the connection to what has this name.
export function showState(target, state, reason, name) {
  target.dataset.state = state;
  setText(target, texts[state](reason));
  document.title = (state === "connected" ? "" : "⚠ ") + name + " – exec-server";
  document.body.dataset.state = state;
}
