// A terminal on the page. It only shows: links, titles, the clipboard, and everything else
// by which a program could reach beyond its rows and columns, do nothing.

import { Terminal } from "./vendor/xterm.mjs";

const nonce = document.querySelector('meta[name="style-nonce"]').content;

// xterm.js makes style elements, which the page accepts only with its nonce.
const createElement = document.createElement;
document.createElement = function (kind, options) {
  const made = createElement.call(this, kind, options);
  if (kind === "style") made.nonce = nonce;
  return made;
};

const themes = {
  dark: { background: "#10141a", foreground: "#d7dde5", cursor: "#d7dde5", selectionBackground: "#3b5a80" },
  light: { background: "#fdfdfb", foreground: "#22272e", cursor: "#22272e", selectionBackground: "#b6d3f2", white: "#59636e", brightWhite: "#22272e" },
};

const dark = matchMedia("(prefers-color-scheme: dark)");

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : dark.matches;
}

const open = new Set(); // all terminals, for a change of the theme

export function paint() {
  for (const terminal of open) terminal.options.theme = themes[isDark() ? "dark" : "light"];
}

dark.addEventListener("change", paint);

// How large characters are. Terminals that are wider than their place get smaller ones,
// and then they scroll.
const fontSizes = { most: 14, least: 9 };
const widthOfCharacter = 0.602; // of a monospaced font, relative to its size

// makeTerminal returns a terminal in a parent, with the sizes that a program thinks it has.
// One that wraps shows the output of pipes, and is as wide as its parent.
export function makeTerminal(parent, { rows = 24, cols = 80, scrollback = 2000, readers = false, wraps = false } = {}) {
  const terminal = new Terminal({
    rows, cols, scrollback, disableStdin: true, cursorInactiveStyle: "outline",
    fontFamily: 'ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace',
    fontSize: fontSizes.most, minimumContrastRatio: 4.5, screenReaderMode: readers,
    theme: themes[isDark() ? "dark" : "light"],
    linkHandler: { activate() {} }, // or a click would ask whether to follow
  });
  terminal.parser.registerOscHandler(8, () => true); // links are not even underlined
  terminal.open(parent);
  open.add(terminal);
  const fit = () => {
    const width = parent.clientWidth - 16;
    if (width <= 0) return;
    if (wraps) {
      const fitting = Math.max(20, Math.floor(width / (fontSizes.most * widthOfCharacter)));
      if (fitting !== terminal.cols) terminal.resize(fitting, terminal.rows);
      return;
    }
    const size = Math.floor((2 * width) / (terminal.cols * widthOfCharacter)) / 2;
    terminal.options.fontSize = Math.max(fontSizes.least, Math.min(fontSizes.most, size));
  };
  const resized = new ResizeObserver(fit);
  resized.observe(parent);
  const listener = terminal.onResize(fit);
  fit();
  return {
    terminal,
    fit,
    // write resolves when the terminal has taken the data, so that nothing piles up.
    write: (data) => new Promise((resolve) => terminal.write(data, resolve)),
    dispose() {
      open.delete(terminal);
      resized.disconnect();
      listener.dispose();
      terminal.dispose();
    },
  };
}
