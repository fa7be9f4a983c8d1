// The protocol of all clients (PROTOCOL.md), over the WebSocket of this page.

import { fits } from "./answers.js";
import { printable } from "./format.js";
import { machine, peer } from "./place.js";
import { machines, ticket, SignedOut } from "./signin.js";

// A peer that has not answered for so long, besides the time for which a call waits anyway, is
// as good as gone. One that is late is said to be.
const answerMs = 30_000;
const lateMs = 5_000;
const longMs = 10_000; // how long a connection lasts that was worth making

const mostReason = 500; // characters of what a peer says about an error

// Lost is the error of a call whose connection ended before the answer.
export class Lost extends Error {}

// Refused is the error of a call that the server refused, or answered with what the page cannot read.
export class Refused extends Error {}

// Connection is one connection to the server. observe names the session that it watches;
// "" is none, and null makes a session of its own.
export class Connection {
  #socket;
  #calls = new Map(); // id to {method, resolve, reject, timer}
  #end; // a function that ends the connection for a reason
  #lastID = 0;

  static async open({ observe = "", notified = () => {} } = {}) {
    const url = new URL("socket", location.href);
    url.protocol = url.protocol.replace("http", "ws");
    url.hash = "";
    url.searchParams.set("ticket", await ticket());
    if (machine) url.searchParams.set("machine", machine);
    const connection = new Connection();
    try {
      await connection.#connect(url, notified);
      connection.machine = await connection.call("initialize", { clientName: "exec-server-web", ...(observe == null ? {} : { observeSessionId: observe }) });
      connection.#send({ method: "initialized" });
    } catch (error) {
      connection.close();
      throw error;
    }
    return connection;
  }

  #connect(url, notified) {
    const socket = (this.#socket = new WebSocket(url));
    this.closed = new Promise((resolve) => {
      this.#end = (reason) => {
        socket.onmessage = null;
        const error = new Lost(printable(reason, mostReason) || "the connection was lost");
        for (const call of this.#calls.values()) {
          clearTimeout(call.timer);
          call.reject(error);
        }
        this.#calls.clear();
        resolve(error);
        socket.close();
      };
    });
    socket.onclose = (event) => this.#end(event.reason);
    socket.onmessage = (event) => this.#take(event.data, notified);
    const timer = this.#hurry(answerMs);
    return new Promise((resolve, reject) => {
      socket.onopen = () => resolve();
      this.closed.then(reject);
    }).finally(() => clearTimeout(timer));
  }

  // hurry ends the connection after a time.
  #hurry(ms) {
    return setTimeout(() => this.#end(peer + " does not answer"), ms);
  }

  // take takes a message. At a gateway it may be anything.
  #take(data, notified) {
    // An owner is sent the output, too; the terminals pull what they show.
    if (typeof data === "string" && data.lastIndexOf('"method":"process/output"', 64) >= 0) return;
    let message = null;
    try {
      message = JSON.parse(data);
    } catch {}
    if (message === null || typeof message !== "object") return this.#end(peer + " sends what is no message of the protocol");
    const { id, method, params, error, result } = message, call = this.#calls.get(id);
    if (!call) {
      if (typeof method === "string" && fits(method, params)) notified(method, params);
      return;
    }
    this.#calls.delete(id);
    clearTimeout(call.timer);
    if (error != null) call.reject(new Refused(printable(error.message, mostReason) || `${peer} refuses ${call.method}`));
    else if (fits(call.method, result)) call.resolve(result);
    else {
      const refused = new Refused(`${peer} answers ${call.method} with something else`);
      console.error(refused.message); // or it is a mistake of this page
      call.reject(refused);
    }
  }

  #send(message) {
    this.#socket.send(JSON.stringify({ jsonrpc: "2.0", ...message }));
  }

  call(method, params) {
    if (this.#socket.readyState !== WebSocket.OPEN) return Promise.reject(new Lost("the connection was lost"));
    const id = ++this.#lastID;
    return new Promise((resolve, reject) => {
      this.#calls.set(id, { method, resolve, reject, timer: this.#hurry(answerMs + (params?.waitMs ?? 0)) });
      this.#send({ id, method, params });
    });
  }

  // close leaves without a code, which is no farewell: sessions stay as they are.
  close() {
    this.#socket.close();
  }

  // leave says farewell: a session of the connection's own ends.
  leave() {
    this.#socket.close(1000);
  }
}

// Link is a connection that is made again when it breaks. It watches no session.
export class Link extends EventTarget {
  state = "connecting"; // or "connected", "lost", "signed out"
  reason = "";
  machine = null;
  late = 0; // calls that have waited long for their answers
  #connection = null;
  #ended = false;

  async run() {
    for (let failures = 0; !this.#ended; failures++) {
      try {
        this.#connection = await Connection.open();
        const began = performance.now();
        this.machine = this.#connection.machine.environmentInfo;
        this.#become("connected", "");
        const error = await this.#connection.closed;
        if (performance.now() - began > longMs) failures = -1; // a peer that ends each connection soon is asked less often
        this.#become("lost", error.message);
      } catch (error) {
        if (error instanceof SignedOut) return this.#become("signed out", error.message);
        this.#become("lost", (await absence()) || error.message);
      }
      const pause = Math.min(10_000, 250 * 2 ** Math.max(0, failures)) * (0.5 + Math.random());
      await new Promise((resolve) => {
        setTimeout(resolve, pause);
        addEventListener("online", resolve, { once: true });
      });
    }
  }

  #become(state, reason) {
    this.state = state;
    this.reason = reason;
    this.dispatchEvent(new Event("state"));
  }

  has(capability) {
    return Boolean(this.machine?.capabilities?.[capability]);
  }

  async call(method, params) {
    if (this.state !== "connected") throw new Lost("the connection was lost");
    let late = 0;
    const timer = setTimeout(() => this.#wait((late = 1)), lateMs + (params?.waitMs ?? 0));
    try {
      return await this.#connection.call(method, params);
    } finally {
      clearTimeout(timer);
      if (late) this.#wait(-1);
    }
  }

  #wait(more) {
    this.late += more;
    this.dispatchEvent(new Event("state"));
  }

  // connected waits until there is a connection.
  async connected() {
    while (this.state !== "connected") await new Promise((resolve) => this.addEventListener("state", resolve, { once: true }));
  }

  end() {
    this.#ended = true;
    this.#connection?.close();
  }
}

// absence says that the machine is not at the gateway, which a browser does not tell of a
// WebSocket that was refused; "" if it may be there.
async function absence() {
  if (!machine) return "";
  try {
    return (await machines()).some((one) => one.name === machine) ? "" : "there is no such machine";
  } catch {
    return "";
  }
}

// decode returns the bytes of base64.
export function decode(text) {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}

// encode returns base64 of bytes.
export function encode(data) {
  let text = "";
  for (let i = 0; i < data.length; i += 8192) text += String.fromCharCode(...data.subarray(i, i + 8192));
  return btoa(text);
}
