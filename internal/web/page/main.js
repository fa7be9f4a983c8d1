// The page as a whole. It signs in, and then shows what runs, and recordings.

import { arrange, button, element, setText } from "./dom.js";
import { Disk } from "./files.js";
import { Fleet } from "./fleet.js";
import { printable, shortVersion } from "./format.js";
import { List } from "./list.js";
import { Model } from "./model.js";
import { Pane } from "./pane.js";
import { address, isGateway, machine, server } from "./place.js";
import { Recordings } from "./recordings.js";
import { principal, signedIn, signInByLink, signInByToken, signOut } from "./signin.js";
import { Takeovers } from "./takeover.js";
import { showState, themeButton } from "./top.js";
import { Link } from "./wire.js";

const announcedMs = 15_000;

// A link that is opened where the page is open already changes nothing but the fragment.
addEventListener("hashchange", () => location.reload());

begin();

async function begin() {
  let problem = "";
  try {
    await signInByLink(askToSwitch);
  } catch (error) {
    problem = error.message;
  }
  if (!signedIn()) {
    askToSignIn(problem);
    return;
  }
  if (isGateway && !machine) {
    await new Fleet(askToSignIn, problem).run();
    return;
  }
  const page = new Page();
  page.begin();
  if (problem) page.announce(problem);
}

// askToSwitch asks whether a link may sign somebody else in here, or anybody at all.
function askToSwitch(from, to) {
  const [title, text, no] = from == null
    ? ["Sign in?", `Another page has led you here, by a link for ${name(to)}. Sign in only if you have asked for that link.`, "Do not sign in"]
    : ["Sign in as somebody else?", `You are signed in as ${name(from)}. The link that you have opened is for ${name(to)}.`, "Stay signed in as " + name(from)];
  return new Promise((resolve) => {
    document.body.replaceChildren(element("main", { class: "sign-in" },
      element("h1", { text: title }),
      element("p", { text }),
      element("div", { class: "buttons" },
        button(no, () => resolve(false), { autofocus: true }),
        button("Sign in as " + name(to), () => resolve(true)))));
    document.querySelector("[autofocus]").focus();
  });
}

const name = (principal) => printable(principal) || "somebody without a name";

// askToSignIn says how to get a link, and takes a token.
function askToSignIn(problem) {
  const input = element("input", { type: "password", id: "token", autocomplete: "off", required: true });
  const note = element("p", { class: "note", role: "alert", text: problem });
  const form = element("form", {}, element("label", { for: "token", text: "or paste a token:" }), input, element("button", { text: "Sign in" }));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await signInByToken(input.value);
      location.reload();
    } catch (error) {
      setText(note, error.message || `${server[0].toUpperCase()}${server.slice(1)} does not accept this token.`);
      input.select();
    }
  });
  document.body.replaceChildren(element("main", { class: "sign-in" },
    element("h1", { text: "exec-server" }), note,
    element("p", {}, "Open the link that ", element("code", { text: isGateway ? "exec-fleet web" : "exec-server web" }), " prints,"), form));
}

// Page is the page of somebody who has signed in.
class Page {
  panes = new Map(); // by key
  #asking = null;

  constructor() {
    this.link = new Link();
    this.model = new Model(this.link);
    this.takeovers = new Takeovers(this.model);
    this.disk = new Disk();
    this.close = (key) => this.closePane(key);
    this.announce = (text) => this.#announce(text);
    this.confirm = (title, text, yes) => this.#confirm(title, text, yes);
    this.readers = () => this.readersBox.checked;
    this.jump = (key, step) => this.#jump(key, step);
    this.list = new List(this.model, { hides: (id) => id === this.disk.sessionId, open: (key) => this.toggle(key), isOpen: (key) => this.panes.has(key) });
    this.recordings = new Recordings(this);
    this.#build();
  }

  #build() {
    this.machine = element("span", { class: "machine" });
    this.back = machine && element("a", { class: "back", href: address(null), text: "‹ Machines" });
    this.connection = element("span", { class: "connection", role: "status" });
    this.live = element("p", { class: "announced", role: "status" });
    this.readersBox = element("input", { type: "checkbox", checked: localStorage.getItem("exec-server readers") === "true", onchange: () => this.#rememberReaders() });
    this.tabs = ["Processes", "Recordings"].map((name) => button(name, () => this.#tab(name), { "aria-pressed": "false" }));
    this.hint = element("p", { class: "hint empty", text: "Choose a process to see its terminal." });
    this.grid = element("div", { class: "grid" });
    this.work = element("div", { class: "work" }, this.list.element, element("main", {}, this.hint, this.grid));
    document.body.replaceChildren(
      element("header", { class: "top" },
        this.back, element("h1", { text: machine ?? "exec-server" }), this.machine, this.connection,
        element("div", { class: "tabs", role: "group", "aria-label": "View" }, ...this.tabs),
        element("div", { class: "settings" },
          element("label", { title: "Terminals tell screen readers what they show" }, this.readersBox, " screen reader"),
          themeButton(),
          button("Sign out", () => this.#signOut()))),
      this.live, this.work, this.recordings.element, this.#makeDialog());
    this.#tab("Processes");
    addEventListener("keydown", (event) => this.#key(event));
    addEventListener("pagehide", () => this.disk.leave());
    // A pane that is near the window has a terminal, and others have none.
    this.observer = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) this.panes.get(target.dataset.key)?.setVisible(isIntersecting);
    }, { rootMargin: "100px" });
    this.model.addEventListener("change", () => {
      for (const pane of [...this.panes.values()]) {
        pane.show();
        if (pane.newest && !this.dialog.open) this.#jump(pane.key, Infinity);
      }
    });
    this.model.addEventListener("problem", (event) => this.announce(event.detail));
    this.takeovers.addEventListener("change", () => {
      for (const pane of this.panes.values()) pane.show();
    });
    this.takeovers.addEventListener("lost", (event) => this.announce(event.detail));
    this.link.addEventListener("state", () => this.#showConnection());
  }

  begin() {
    this.#showConnection();
    this.link.run();
    this.model.run();
  }

  // announce shows a text for a while, and has screen readers say it.
  #announce(text) {
    setText(this.live, text);
    clearTimeout(this.silence);
    this.silence = setTimeout(() => setText(this.live, ""), announcedMs);
  }

  #showConnection() {
    const { state, reason, machine: info } = this.link;
    if (state === "signed out") {
      askToSignIn(reason);
      return;
    }
    showState(this.connection, state === "connected" && this.link.late > 0 ? "late" : state, reason, machine ?? location.host);
    this.#showEmpty();
    if (!info) return;
    const facts = [location.host, printable(info.platformOs, 40), shortVersion(info.executorVersion), principal() && "you are " + principal()];
    setText(this.machine, facts.filter(Boolean).map((fact) => printable(fact)).join(" · "));
    this.machine.title = printable(info.executorVersion);
  }

  toggle(key) {
    if (this.panes.has(key)) this.closePane(key);
    else this.openPane(key);
  }

  openPane(key) {
    const pane = this.#make(key);
    this.panes.set(key, pane);
    this.#arrange();
    this.observer.observe(pane.element);
    pane.element.scrollIntoView({ block: "nearest" });
  }

  // jump shows another command of the session in the place of a pane: the earlier or the
  // later one, or the last one.
  #jump(key, step) {
    const pane = this.panes.get(key);
    const commands = this.model.commands(pane.process.sessionId);
    const at = commands.indexOf(key);
    const to = commands[Math.max(0, Math.min(commands.length - 1, at + step))];
    if (!to || to === key) return;
    const hadFocus = pane.element.contains(document.activeElement);
    if (!this.panes.has(to)) {
      const other = this.#make(to);
      // The other takes the place in the order, and is there before the session has no pane.
      this.panes = new Map([...this.panes].flatMap(([k, p]) => (k === key ? [[to, other], [key, pane]] : [[k, p]])));
    }
    this.closePane(key);
    const other = this.panes.get(to);
    other.setNewest(pane.newest || other.newest);
    other.openLike(pane);
    this.observer.observe(other.element);
    if (hadFocus) other.title.focus();
  }

  #make(key) {
    const pane = new Pane(this, key);
    pane.element.dataset.key = key;
    return pane;
  }

  closePane(key) {
    const pane = this.panes.get(key);
    const hadFocus = pane.element.contains(document.activeElement);
    this.observer.unobserve(pane.element);
    pane.end();
    this.panes.delete(key);
    const { sessionId } = pane.process;
    const others = [...this.panes.values()].some((other) => other.process.sessionId === sessionId);
    if (this.takeovers.of(sessionId) && !others) this.takeovers.give(sessionId); // nothing here would show it
    this.#arrange();
    if (hadFocus) this.list.focusFilter();
  }

  #arrange() {
    arrange(this.grid, [...this.panes.values()].map((pane) => pane.element));
    this.grid.dataset.count = Math.min(this.panes.size, 4);
    this.#showEmpty();
    this.list.show();
  }

  // showEmpty hides what one uses to choose a process while nothing is known to choose from,
  // because the machine was never reached.
  #showEmpty() {
    const absent = this.link.state === "lost" && !this.link.machine;
    this.list.element.hidden = absent;
    this.hint.hidden = absent || this.panes.size > 0;
  }

  #tab(name) {
    for (const tab of this.tabs) tab.setAttribute("aria-pressed", String(tab.textContent === name));
    this.work.hidden = name !== "Processes";
    this.recordings.element.hidden = name !== "Recordings";
    if (name === "Recordings") this.recordings.show();
    else this.recordings.end();
  }

  #key(event) {
    const typing = event.target.matches("input, select, .owned textarea");
    const chord = event.metaKey || (event.ctrlKey && !event.getModifierState("AltGraph")); // many keyboards have [ behind AltGr
    if (typing || chord || this.work.hidden || this.dialog.open) return;
    if (event.key === "/") this.list.focusFilter();
    else if (event.key === "[") this.#paneInFocus()?.jump(-1);
    else if (event.key === "]") this.#paneInFocus()?.jump(1);
    else return;
    event.preventDefault();
  }

  // paneInFocus returns the pane that has the focus, or the first.
  #paneInFocus() {
    const panes = [...this.panes.values()];
    return panes.find((pane) => pane.element.contains(document.activeElement)) ?? panes[0];
  }

  #rememberReaders() {
    localStorage.setItem("exec-server readers", String(this.readersBox.checked));
    for (const key of [...this.panes.keys()]) {
      this.closePane(key);
      this.openPane(key);
    }
  }

  async #signOut() {
    this.disk.leave();
    this.link.end();
    try {
      await signOut();
    } finally {
      location.reload();
    }
  }

  #makeDialog() {
    this.dialogTitle = element("h2", { id: "dialog-title" });
    this.dialogText = element("p");
    this.dialogYes = button("", () => this.dialog.close("yes"), { class: "yes" });
    this.dialog = element("dialog", { "aria-labelledby": "dialog-title", onclose: () => this.#asking?.(this.dialog.returnValue === "yes") },
      this.dialogTitle, this.dialogText,
      element("div", { class: "buttons" }, button("Cancel", () => this.dialog.close("no")), this.dialogYes));
    return this.dialog;
  }

  #confirm(title, text, yes) {
    this.dialog.returnValue = "no";
    setText(this.dialogTitle, title);
    setText(this.dialogText, text);
    setText(this.dialogYes, yes);
    this.dialog.showModal();
    return new Promise((resolve) => (this.#asking = resolve));
  }
}
