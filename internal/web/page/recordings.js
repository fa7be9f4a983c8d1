// Recordings: a list, and a player with a time line.

import { within } from "./answers.js";
import { button, element, setText } from "./dom.js";
import { bytes, clock, command, duration, path, printable } from "./format.js";
import { makeTerminal } from "./terminal.js";
import { decode } from "./wire.js";

const blockBytes = 512 << 10;
const mostBytes = 64 << 20; // of a recording that is played here
const mostListed = 5000; // recordings
const mostPages = 1000; // of the list, which may be empty
const longestPause = 3000; // milliseconds, unless pauses are kept

export class Recordings {
  #page; // {link, readers}
  #player = null;

  constructor(page) {
    this.#page = page;
    this.note = element("p", { class: "hint", role: "status" });
    this.body = element("tbody");
    this.place = element("div");
    const heads = ["Started", "Command", "Took", "Size"].map((text) => element("th", { scope: "col", text }));
    this.element = element("section", { class: "recordings", "aria-label": "Recordings" },
      element("div", { class: "bar" }, element("h2", { text: "Recordings" }), button("Refresh", () => this.show()), this.note),
      this.place,
      element("div", { class: "table" }, element("table", {}, element("thead", {}, element("tr", {}, ...heads)), this.body)));
  }

  async show() {
    if (!this.#page.link.has("recordings")) {
      setText(this.note, "This server records nothing; --record makes it.");
      return;
    }
    try {
      const recordings = [];
      let before;
      for (let pages = 0; pages < mostPages && recordings.length < mostListed; pages++) {
        const list = await this.#page.link.call("recording/list", before ? { before } : {});
        recordings.push(...list.recordings.slice(0, mostListed - recordings.length));
        before = list.next;
        if (!before) break;
      }
      this.body.replaceChildren(...recordings.map((r) => this.#row(r)));
      const none = before ? "None of the newest can be listed." : "There are none.";
      setText(this.note, recordings.length === 0 ? none : before ? "There are older ones, too." : "");
    } catch (error) {
      setText(this.note, error.message);
    }
  }

  #row(recording) {
    const text = command(recording.argv, recording.argvTruncated) || printable(recording.recordingId);
    return element("tr", {},
      element("td", { text: new Date(recording.startedAtMs).toLocaleString() }),
      element("td", {}, button(text, () => this.#play(recording, text), { class: "command" }), element("span", { class: "about", text: path(recording.cwd) })),
      element("td", { text: recording.live ? "live" : duration(recording.endedAtMs - recording.startedAtMs) }),
      element("td", { text: bytes(recording.sizeBytes) }));
  }

  async #play(recording, title) {
    this.end();
    setText(this.note, "Loading…");
    try {
      const { text, whole } = await this.#load(recording.recordingId);
      const cast = parse(text);
      setText(this.note, whole ? "" : `Only the first ${bytes(mostBytes)} are played.`);
      this.#player = new Player(cast, title, this.#page.readers(), () => this.end());
      this.place.replaceChildren(this.#player.element);
      this.#player.start();
    } catch (error) {
      setText(this.note, error.message);
    }
  }

  async #load(recordingId) {
    const decoder = new TextDecoder();
    let text = "", offset = 0;
    for (;;) {
      const block = await this.#page.link.call("recording/read", { recordingId, offset, len: blockBytes });
      const data = decode(block.chunk);
      text += decoder.decode(data, { stream: true });
      offset += data.length;
      if (block.eof || offset >= mostBytes) return { text, whole: block.eof };
      if (data.length === 0) throw new Error("the server sends an empty part of the recording");
    }
  }

  end() {
    this.#player?.end();
    this.#player = null;
    this.place.replaceChildren();
  }
}

// parse reads an asciicast of version 2, up to the first line that is not an event.
function parse(text) {
  const lines = linesOf(text);
  const header = JSON.parse(lines.next().value ?? null);
  if (header?.version !== 2) throw new Error("this is no recording that the page can play");
  const events = [];
  let at = 0;
  for (const line of lines) {
    if (line === "" || line.startsWith("#")) continue;
    let event;
    try {
      event = JSON.parse(line);
    } catch {
      break; // it was cut here
    }
    if (!Array.isArray(event) || !Number.isFinite(event[0]) || typeof event[2] !== "string") break;
    at = Math.max(at, 1000 * event[0]);
    events.push({ at, code: event[1], text: event[2] });
  }
  return { rows: within(header.height, 24, 500), cols: within(header.width, 80, 1000), events, length: at };
}

// linesOf returns the lines of a text one after the other: there may be millions.
function* linesOf(text) {
  for (let from = 0, to; from < text.length; from = to + 1) {
    to = text.indexOf("\n", from);
    if (to < 0) to = text.length;
    yield text.slice(from, to);
  }
}

class Player {
  #cast;
  #view;
  #readers;
  #next = 0; // index of the event that is shown next
  #at = 0; // milliseconds of the recording that are shown
  #timer = null;
  #playing = false;
  #drawing = Promise.resolve();
  #endings = [];

  constructor(cast, title, readers, close) {
    this.#cast = cast;
    this.#readers = readers;
    this.screen = element("div", { class: "screen" });
    this.playButton = button("Pause", () => (this.#playing ? this.pause() : this.play()));
    this.line = element("input", {
      type: "range", min: 0, max: Math.max(1, Math.ceil(cast.length)), step: 1, value: 0, "aria-label": "Time",
      oninput: () => this.seek(Number(this.line.value)),
    });
    this.time = element("span", { class: "time" });
    this.speed = element("select", { "aria-label": "Speed", onchange: () => this.#again() },
      ...[0.5, 1, 2, 4, 16].map((n) => element("option", { value: n, text: n + "×", selected: n === 1 })));
    this.pauses = element("input", { type: "checkbox", checked: true, onchange: () => this.#again() });
    this.state = element("span", { class: "state", role: "status" });
    this.element = element("article", { class: "pane player", "aria-label": "Recording of " + title },
      element("header", {}, element("div", { class: "titles" }, element("h3", { text: title }), this.state),
        element("div", { class: "buttons" }, button("Close", close, { "aria-label": "Close the recording" }))),
      this.screen,
      element("div", { class: "controls" }, this.playButton, this.line, this.time, this.speed,
        element("label", {}, this.pauses, " shorten pauses")));
  }

  start() {
    this.#view = makeTerminal(this.screen, { rows: this.#cast.rows, cols: this.#cast.cols, readers: this.#readers });
    this.#view.terminal.attachCustomKeyEventHandler(() => false);
    this.#view.terminal.textarea.tabIndex = -1;
    this.play();
  }

  end() {
    this.pause();
    this.#view.dispose();
  }

  play() {
    if (this.#next >= this.#cast.events.length) this.seek(0);
    this.#playing = true;
    setText(this.playButton, "Pause");
    this.#again();
  }

  pause() {
    this.#playing = false;
    clearTimeout(this.#timer);
    setText(this.playButton, "Play");
  }

  seek(to) {
    if (to < this.#at) {
      this.#next = 0;
      this.#endings = [];
      this.#view.terminal.resize(this.#cast.cols, this.#cast.rows);
      this.#write("\x18\x1bc");
    }
    this.#showUpTo(to);
    this.#again();
  }

  #write(text) {
    this.#drawing = this.#drawing.then(() => this.#view.write(text));
  }

  // showUpTo shows the events up to a time. Output goes to the terminal together.
  #showUpTo(to) {
    const { events } = this.#cast;
    let text = "", resized = null; // the last size, which only output makes visible
    const resize = () => {
      const size = resized;
      resized = null;
      if (size) this.#drawing = this.#drawing.then(() => this.#view.terminal.resize(...size));
    };
    for (; this.#next < events.length && events[this.#next].at <= to; this.#next++) {
      const event = events[this.#next];
      if (event.code === "o") {
        resize();
        text += event.text;
      }
      if (event.code === "m") this.#endings.push(printable(event.text));
      const size = event.code === "r" && /^(\d+)x(\d+)$/.exec(event.text);
      if (size) {
        if (text) this.#write(text);
        text = "";
        resized = [within(Number(size[1]), 80, 1000), within(Number(size[2]), 24, 500)];
      }
    }
    resize();
    if (text) this.#write(text);
    this.#at = to;
    this.line.value = to;
    setText(this.time, clock(to) + " of " + clock(this.#cast.length));
    this.line.setAttribute("aria-valuetext", this.time.textContent);
    setText(this.state, this.#next >= events.length ? this.#endings.slice(-2).join(", ") : "");
  }

  // again waits for the next event, or for the next step of the time line.
  #again() {
    clearTimeout(this.#timer);
    if (!this.#playing) return;
    const next = this.#cast.events[this.#next];
    if (!next) {
      this.pause();
      return;
    }
    const speed = Number(this.speed.value);
    let left = next.at - this.#at;
    if (this.pauses.checked && left > longestPause) {
      this.#at = next.at - longestPause;
      left = longestPause;
    }
    const step = Math.min(left, 100 * speed);
    const began = performance.now();
    this.#timer = setTimeout(() => {
      const passed = Math.max(step, (performance.now() - began) * speed);
      this.#drawing.then(() => {
        if (!this.#playing) return;
        this.#showUpTo(Math.min(this.#at + Math.min(passed, left), this.#cast.length));
        this.#again();
      });
    }, Math.max(16, step / speed));
  }
}
