// What a process shows, pulled from the server. Nothing is pushed: a process that floods
// is shown as pictures with pauses, and a watcher that is slow sees fewer of them.

import { within } from "./answers.js";
import { printable } from "./format.js";
import { decode, Lost } from "./wire.js";

const mostBytes = 32 << 10; // of output in one answer; with as many, the watcher is behind
const waitMs = 20_000; // for output
const pictureMs = 250; // between two pictures of a process that floods, at least; several may flood
const sizeMs = 2_000; // between two looks at the size of a terminal that shows output
const emptyMs = 250; // between an answer without output, which came at once, and the next question
const largest = { rows: 500, cols: 1000 }; // of a terminal here
const tailBytes = 64 << 10; // of a stream that a late watcher gets

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Follower shows a process in a terminal until it is stopped.
export class Follower {
  #link;
  #process;
  #view; // of makeTerminal
  #stopped = false;
  #told; // a function that gets what a person should know
  #sizedAt = 0;

  constructor(link, process, view, told) {
    this.#link = link;
    this.#process = process;
    this.#view = view;
    this.#told = told;
  }

  stop() {
    this.#stopped = true;
  }

  async run() {
    while (!this.#stopped) {
      try {
        await this.#link.connected();
        await this.#follow();
        return;
      } catch (error) {
        if (this.#stopped) return;
        if (!(error instanceof Lost)) {
          this.#told(error.message);
          return;
        }
        await sleep(250);
      }
    }
  }

  #call(method, params) {
    const { sessionId, processId } = this.#process;
    return this.#link.call(method, { sessionId, processId, ...params });
  }

  async #follow() {
    let after = await this.#picture();
    while (!this.#stopped) {
      await shown();
      const began = performance.now();
      const read = await this.#call("process/read", { afterSeq: after, maxBytes: mostBytes, waitMs });
      if (this.#stopped) return;
      const size = read.chunks.reduce((sum, chunk) => sum + chunk.chunk.length * 0.75, 0);
      const gap = read.firstSeq != null && read.firstSeq > after + 1 && read.chunks[0]?.seq > after + 1;
      if (size > mostBytes / 2 || gap) {
        after = await this.#picture();
        await sleep(Math.max(pictureMs, 3 * (performance.now() - began)));
        continue;
      }
      for (const chunk of read.chunks) await this.#view.write(decode(chunk.chunk));
      after = Math.max(after, read.nextSeq - 1);
      if (read.chunks.length === 0 && performance.now() - began < emptyMs) await sleep(emptyMs);
      if (read.closed) {
        await this.#ended(read);
        return;
      }
      if (read.chunks.length > 0 && this.#process.tty && performance.now() - this.#sizedAt > sizeMs) {
        after = Math.max(after, await this.#checkSize(after));
      }
    }
  }

  async #ended(read) {
    const text = read.failure ? read.failure : "";
    if (text) this.#told(printable(text, 500));
  }

  // picture shows everything at once, and returns the number of the last event that it has.
  async #picture() {
    return this.#process.tty && this.#link.has("processScreen") ? this.#screen() : this.#tail();
  }

  async #screen() {
    const screen = await this.#call("process/screen", { drawing: true });
    if (this.#stopped) return 0;
    const { terminal } = this.#view, { rows, cols } = sizeOf(screen);
    if (terminal.rows !== rows || terminal.cols !== cols) terminal.resize(cols, rows);
    this.#sizedAt = performance.now();
    // CAN ends a sequence that is not complete, RIS all that there was.
    await this.#view.write("\x18\x1bc");
    await this.#view.write(decode(screen.drawing));
    this.#told(screen.omittedBytes > 0 ? "The server no longer has all output; parts of the screen may be wrong." : "");
    return screen.nextSeq - 1;
  }

  // checkSize draws the screen again if the terminal has another size now.
  async #checkSize(after) {
    const { rows, cols } = sizeOf(await this.#call("process/screen"));
    this.#sizedAt = performance.now();
    const { terminal } = this.#view;
    return rows === terminal.rows && cols === terminal.cols ? after : this.#screen();
  }

  // tail shows the ends of the streams of a process with pipes.
  async #tail() {
    const snapshot = await this.#call("process/snapshot", { maxBytes: tailBytes });
    if (this.#stopped) return 0;
    await this.#view.write("\x18\x1bc");
    let omitted = 0;
    for (const stream of [snapshot.stdout, snapshot.stderr, snapshot.terminal]) {
      if (!stream) continue;
      omitted += stream.omittedBytes;
      if (stream.omittedBytes === 0) await this.#view.write(decode(stream.head));
      await this.#view.write(decode(stream.tail));
    }
    this.#told(omitted > 0 ? "Only the end is shown; Search looks at all that the server retains." : "");
    return snapshot.nextSeq - 1;
  }
}

function sizeOf({ size }) {
  return { rows: within(size.rows, 24, largest.rows), cols: within(size.cols, 80, largest.cols) };
}

// shown waits while the page is hidden.
async function shown() {
  while (document.hidden) await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}

const mostSearched = 16 << 20; // bytes of a process
const mostFound = 500; // lines
const mostReads = 1000; // answers may be almost empty

// Sequences of terminals, and the other control characters but tab and line feed.
const sequences = /\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])|[\x00-\x08\x0b-\x1f\x7f]/g;

// search looks for a text in the output that the server retains, without regard to capitals. It
// returns {lines: [{stream, number, text}], searched, complete}.
export async function search(link, process, text) {
  const wanted = text.toLowerCase();
  const streams = new Map();
  const found = [];
  let after = 0, searched = 0, complete = true;
  const look = (stream, line) => {
    stream.number++;
    if (line.toLowerCase().includes(wanted)) found.push({ stream: stream.name, number: stream.number, text: line.slice(0, 500) });
  };
  for (let reads = 1; found.length < mostFound; reads++) {
    const read = await link.call("process/read", {
      sessionId: process.sessionId, processId: process.processId, afterSeq: after, maxBytes: 256 << 10, waitMs: 0,
    });
    for (const chunk of read.chunks) {
      const stream = streams.get(chunk.stream) ?? { name: chunk.stream, number: 0, rest: "", decoder: new TextDecoder() };
      streams.set(chunk.stream, stream);
      const data = decode(chunk.chunk);
      searched += data.length;
      const lines = (stream.rest + stream.decoder.decode(data, { stream: true })).split("\n");
      stream.rest = lines.pop().slice(-(64 << 10));
      for (const line of lines) look(stream, line.replace(sequences, ""));
    }
    const last = read.chunks.at(-1)?.seq ?? read.nextSeq - 1;
    if (read.chunks.length === 0 || last <= after) break;
    after = last;
    if (searched >= mostSearched || reads === mostReads) {
      complete = false;
      break;
    }
  }
  for (const stream of streams.values()) if (stream.rest) look(stream, stream.rest.replace(sequences, ""));
  return { lines: found.slice(0, mostFound), searched, complete: complete && found.length < mostFound };
}
