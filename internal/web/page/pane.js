// A pane shows one process: its terminal, what it uses, and how it ended. It is read-only
// until a person takes the session over.

import { button, element, setAttribute, setText } from "./dom.js";
import { ChangedFiles } from "./files.js";
import { Follower, search } from "./follow.js";
import { bytes, command, duration, ending, path, percent, printable } from "./format.js";
import { Plot } from "./plot.js";
import { makeTerminal } from "./terminal.js";

const outputMs = 2000; // between two looks at how much output there is

export class Pane {
  #page; // {link, model, takeovers, disk, close, jump, announce, confirm, readers}
  #view = null;
  #follower = null;
  #visible = false; // it has a terminal
  #inView = false;
  #owner = null; // the Ownership of the session, once it is taken over
  #outputs = []; // {at, total, value}
  #dataListener = null;
  newest = false; // it always shows the newest command of the session

  constructor(page, key) {
    this.#page = page;
    this.key = key;
    this.process = page.model.processes.get(key);
    this.title = element("h3", { tabindex: "-1" });
    this.state = element("span", { class: "state" });
    this.note = element("p", { class: "note", role: "status" });
    this.screen = element("div", { class: "screen" });
    this.takeButton = button("Take over", () => this.#takeOrGive());
    this.killButton = button("Terminate…", () => this.#terminate());
    this.fitButton = button("Fit", () => this.#fit(), { hidden: true, title: "Give the program a terminal of the size of this pane" });
    this.findButton = button("Search", () => this.#toggleSearch(), { "aria-expanded": "false" });
    this.earlierButton = button("‹", () => this.jump(-1), { "aria-label": "Earlier command", title: "The command before this one ([)" });
    this.laterButton = button("›", () => this.jump(1), { "aria-label": "Later command", title: "The command after this one (])" });
    this.newestButton = button("Newest", () => this.#toggleNewest(), { "aria-pressed": "false", title: "Always show the newest command of the session" });
    this.files = new ChangedFiles(page, this.process);
    this.detailsButton = button("Details", () => this.#toggleDetails(), { "aria-expanded": "false" });
    this.plots = { cpu: new Plot("CPU"), memory: new Plot("Memory"), output: new Plot("Output") };
    this.facts = element("dl");
    this.details = element("div", { class: "details", hidden: true }, this.facts);
    this.search = this.#makeSearch();
    this.element = element("article", { class: "pane" },
      element("header", {},
        element("div", { class: "titles" }, this.title, this.state),
        element("div", { class: "buttons" },
          this.earlierButton, this.laterButton, this.newestButton,
          this.takeButton, this.fitButton, this.findButton, this.files.button, this.detailsButton, this.killButton,
          button("Close", () => page.close(key), { "aria-label": "Close the pane" }))),
      this.note, this.search.element, this.files.element, this.screen,
      element("div", { class: "plots" }, this.plots.cpu.element, this.plots.memory.element, this.plots.output.element),
      this.details);
    this.show();
  }

  // setVisible says whether the pane is in view. One that is not has no terminal, so that
  // any number of panes may be open.
  setVisible(visible) {
    this.#inView = visible;
    if (visible === this.#visible || (this.#owner && !visible)) return;
    this.#visible = visible;
    if (!visible) return this.#stop();
    this.#start();
    this.show();
  }

  #start() {
    this.screen.style.minHeight = "";
    this.#view = makeTerminal(this.screen, { readers: this.#page.readers(), wraps: !this.process.tty });
    this.#view.terminal.options.convertEol = !this.process.tty;
    this.#view.terminal.attachCustomKeyEventHandler((event) => this.#key(event));
    this.#dataListener = this.#view.terminal.onData((data) => this.#type(data));
    this.#label();
    this.#follower = new Follower(this.#page.link, this.process, this.#view, (text) => setText(this.note, text));
    this.#follower.run();
    this.#measure(this.#follower);
  }

  #stop() {
    this.screen.style.minHeight = this.screen.offsetHeight + "px"; // or the page would jump
    this.#follower?.stop();
    this.#dataListener?.dispose();
    this.#view?.dispose();
    this.#follower = this.#view = this.#dataListener = null;
    this.screen.replaceChildren();
  }

  end() {
    this.wasOpen = { files: this.files.open };
    this.files.end();
    if (this.#visible) this.#stop();
    this.#visible = false;
  }

  // measure asks how much the process has written, while its pane is in view.
  async #measure(follower) {
    while (this.#follower === follower) {
      try {
        const { sessionId, processId } = this.process;
        const snapshot = await this.#page.link.call("process/snapshot", { sessionId, processId, maxBytes: 0 });
        const at = performance.now(), last = this.#outputs.at(-1);
        const total = [snapshot.stdout, snapshot.stderr, snapshot.terminal].reduce((sum, stream) => sum + (stream?.totalBytes ?? 0), 0);
        this.#outputs.push({ at, total, value: last ? (1000 * Math.max(0, total - last.total)) / (at - last.at) : null });
        if (this.#outputs.length > 150) this.#outputs.shift();
      } catch {
        // The follower says what is wrong.
      }
      await new Promise((resolve) => setTimeout(resolve, outputMs));
    }
  }

  // show shows what the model knows now.
  show() {
    const { model } = this.#page;
    const before = this.process;
    this.process = model.processes.get(this.key) ?? this.process;
    const gone = !model.processes.has(this.key);
    const runs = !gone && this.process.exitCode == null;
    const text = command(this.process.argv, this.process.argvTruncated) || printable(this.process.processId);
    setText(this.title, text);
    setText(this.state, gone ? "the server has forgotten it" : ending(this.process));
    setAttribute(this.element, "aria-label", text);
    this.element.classList.toggle("ended", !runs);
    if (before.exitCode == null && this.process.exitCode != null) this.#page.announce(text + ": " + ending(this.process));
    if (!this.#visible) return;
    const session = model.sessions.get(this.process.sessionId);
    const owner = this.#page.takeovers.of(this.process.sessionId);
    this.#own(owner);
    setText(this.takeButton, owner ? "Give back" : "Take over");
    this.takeButton.hidden = !owner && (!session?.own || !runs);
    this.fitButton.hidden = !owner || !runs || !this.process.tty;
    this.killButton.hidden = !session?.own || !runs;
    const commands = model.commands(this.process.sessionId), at = commands.indexOf(this.key);
    this.earlierButton.disabled = at <= 0;
    this.laterButton.disabled = at < 0 || at === commands.length - 1;
    this.newestButton.hidden = this.earlierButton.hidden = this.laterButton.hidden = commands.length < 2 && !this.newest;
    this.#plot(runs);
    this.#describe(session);
  }

  #plot(runs) {
    const samples = this.#page.model.samples.get(this.key) ?? [];
    const last = runs ? samples.at(-1) : null;
    this.plots.cpu.show(samples.map(({ at, cpu }) => ({ at, value: cpu })), percent(last?.cpu));
    this.plots.memory.show(samples.map(({ at, memory }) => ({ at, value: memory })), bytes(last?.memory));
    const output = this.#outputs.at(-1);
    this.plots.output.show(this.#outputs, output?.value ? bytes(output.value) + "/s" : bytes(output?.total));
  }

  #describe(session) {
    const p = this.process, facts = [["Command", command(p.argv, p.argvTruncated)], ["Directory", path(p.cwd)]];
    facts.push(["Process", printable(p.processId) + (p.pid ? ", pid " + p.pid : "")]);
    if (session) facts.push(["Started by", printable(session.clientName) + (session.own ? "" : " of " + printable(session.principal))]);
    if (p.startedAtMs) facts.push(["Started", new Date(p.startedAtMs).toLocaleString()]);
    facts.push(["Streams", p.tty ? "a terminal" : "pipes"], ["Ending", ending(p)]);
    if (p.rusage) facts.push(["Used", duration(p.rusage.userMs + p.rusage.systemMs) + " of processor time" + (p.rusage.maxRssBytes ? ", " + bytes(p.rusage.maxRssBytes) + " at most" : "")]);
    const text = JSON.stringify(facts);
    if (text === this.facts.dataset.shown) return;
    this.facts.dataset.shown = text;
    this.facts.replaceChildren(...facts.flatMap(([name, value]) => [element("dt", { text: name }), element("dd", { text: value })]));
  }

  jump(step) {
    this.setNewest(false);
    this.#page.jump(this.key, step);
  }

  setNewest(on) {
    this.newest = on;
    this.newestButton.setAttribute("aria-pressed", String(on));
  }

  #toggleNewest() {
    this.setNewest(!this.newest);
    if (this.newest) this.#page.jump(this.key, Infinity);
  }

  // openLike opens what is open in the pane whose place this one takes.
  openLike(other) {
    if (other.details.hidden !== this.details.hidden) this.#toggleDetails();
    if (other.wasOpen.files && !this.files.open && !this.files.button.hidden) this.files.toggle();
  }

  #toggleDetails() {
    this.details.hidden = !this.details.hidden;
    this.detailsButton.setAttribute("aria-expanded", String(!this.details.hidden));
  }

  // What a person who has taken the session over does.

  #own(owner) {
    if (owner === this.#owner) return;
    this.#owner = owner;
    this.element.classList.toggle("owned", Boolean(owner));
    this.#label();
    if (owner && this.#visible) this.#view?.terminal.focus();
    if (!owner) this.setVisible(this.#inView);
  }

  #label() {
    if (!this.#view) return;
    const { terminal } = this.#view;
    terminal.options.disableStdin = !this.#owner;
    terminal.options.cursorBlink = Boolean(this.#owner);
    const text = this.#owner ? "Terminal. What you type goes to the program; Shift and Escape leave it." : "Terminal, read-only";
    terminal.textarea.setAttribute("aria-label", text);
    terminal.textarea.tabIndex = this.#owner ? 0 : -1;
  }

  // key reports whether a key is for the program.
  #key(event) {
    if (!this.#owner) return false;
    if (event.key === "Escape" && event.shiftKey) {
      if (event.type === "keydown") this.title.focus();
      return false;
    }
    return true;
  }

  #type(data) {
    if (this.#owner) this.#owner.write(this.process.processId, data).catch((error) => setText(this.note, error.message));
  }

  #fit() {
    const { terminal } = this.#view;
    const row = this.screen.querySelector(".xterm-rows > div");
    const height = row?.offsetHeight || 17, width = 14 * 0.602;
    const size = {
      cols: Math.max(20, Math.floor((this.screen.clientWidth - 16) / width)),
      rows: Math.max(8, Math.min(60, Math.floor((innerHeight * 0.6) / Math.max(height, 14)))),
    };
    if (size.cols === terminal.cols && size.rows === terminal.rows) return;
    this.#owner?.resize(this.process.processId, size).catch((error) => setText(this.note, error.message));
  }

  async #takeOrGive() {
    const { takeovers, announce, confirm } = this.#page;
    const id = this.process.sessionId;
    this.takeButton.disabled = true;
    try {
      if (takeovers.of(id)) {
        await takeovers.give(id);
        announce("You have given the session back.");
        return;
      }
      await this.#page.model.refresh();
      const session = this.#page.model.sessions.get(id);
      const loser = session?.state === "attached" ? printable(session.clientName, 80) + " loses the session while you have it. " : "";
      if (!(await confirm("Take over?", loser + "What you type goes to the program.", "Take over"))) return;
      await takeovers.take(id);
      announce("You have taken the session over.");
    } catch (error) {
      setText(this.note, error.message);
    } finally {
      this.takeButton.disabled = false;
      this.show();
    }
  }

  async #terminate() {
    const text = command(this.process.argv, this.process.argvTruncated, 200);
    if (!(await this.#page.confirm("Terminate?", text + " gets SIGTERM, and SIGKILL after five seconds.", "Terminate"))) return;
    try {
      const { sessionId, processId } = this.process;
      await this.#page.link.call("process/terminate", { sessionId, processId, mode: "graceful", timeoutMs: 5000 });
    } catch (error) {
      setText(this.note, error.message);
    }
  }

  #makeSearch() {
    const input = element("input", { type: "search", "aria-label": "Search the output", placeholder: "Search the output" });
    const result = element("p", { class: "hint", role: "status" }), lines = element("ol", { class: "found", tabindex: "0", "aria-label": "Lines that match" });
    const form = element("form", { role: "search" }, input, element("button", { text: "Search" }), result);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (!input.value) return;
      setText(result, "Searching…");
      try {
        const found = await search(this.#page.link, this.process, input.value);
        lines.replaceChildren(...found.lines.map(({ stream, number, text }) =>
          element("li", {}, element("span", { class: "hint", text: (stream === "pty" ? "" : stream + " ") + number + " " }), element("code", { text: printable(text) }))));
        const n = found.lines.length;
        setText(result, (n === 1 ? "1 line" : n + " lines") + " of " + bytes(found.searched) + (found.complete ? "" : "; there may be more"));
      } catch (error) {
        setText(result, error.message);
      }
    });
    return { input, element: element("div", { class: "search", hidden: true }, form, lines) };
  }

  #toggleSearch() {
    const box = this.search.element;
    box.hidden = !box.hidden;
    this.findButton.setAttribute("aria-expanded", String(!box.hidden));
    if (!box.hidden) this.search.input.focus();
  }
}
