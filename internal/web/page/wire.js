// The protocol of all clients (PROTOCOL.md), over the WebSocket of this page.

import { machine } from "./place.js";
import { machines, ticket, SignedOut } from "./signin.js";

// Lost is the error of a call whose connection ended before the answer.
export class Lost extends Error {}

// Refused is the error that the server answered.
export class Refused extends Error {}

// Connection is one connection to the server. observe names the session that it watches;
// "" is none, and null makes a session of its own.
export class Connection {
  #socket;
  #calls = new Map(); // id to {resolve, reject}
  #lastID = 0;

  static async open({ observe = "", notified = () => {} } = {}) {
    const url = new URL("socket", location.href);
    url.protocol = url.protocol.replace("http", "ws");
    url.hash = "";
    url.searchParams.set("ticket", await ticket());
    if (machine) url.searchParams.set("machine", machine);
    const connection = new Connection();
    await connection.#connect(url, notified);
    connection.machine = await connection.call("initialize", { clientName: "exec-server-web", ...(observe == null ? {} : { observeSessionId: observe }) });
    connection.#send({ method: "initialized" });
    return connection;
  }

  #connect(url, notified) {
    const socket = (this.#socket = new WebSocket(url));
    this.closed = new Promise((resolve) => {
      socket.onclose = (event) => {
        const error = new Lost(event.reason || "the connection was lost");
        for (const call of this.#calls.values()) call.reject(error);
        this.#calls.clear();
        resolve(error);
      };
    });
    socket.onmessage = (event) => {
      // An owner is sent the output, too; the terminals pull what they show.
      if (event.data.lastIndexOf('"method":"process/output"', 64) >= 0) return;
      const message = JSON.parse(event.data);
      const call = this.#calls.get(message.id);
      if (!call) {
        if (message.method) notified(message.method, message.params);
        return;
      }
      this.#calls.delete(message.id);
      if (message.error) call.reject(new Refused(message.error.message));
      else call.resolve(message.result);
    };
    return new Promise((resolve, reject) => {
      socket.onopen = () => resolve();
      this.closed.then(reject);
    });
  }

  #send(message) {
    this.#socket.send(JSON.stringify({ jsonrpc: "2.0", ...message }));
  }

  call(method, params) {
    if (this.#socket.readyState !== WebSocket.OPEN) return Promise.reject(new Lost("the connection was lost"));
    const id = ++this.#lastID;
    return new Promise((resolve, reject) => {
      this.#calls.set(id, { resolve, reject });
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
  #connection = null;
  #ended = false;

  async run() {
    for (let failures = 0; !this.#ended; failures++) {
      try {
        this.#connection = await Connection.open();
        failures = -1;
        this.machine = this.#connection.machine.environmentInfo;
        this.#become("connected", "");
        const error = await this.#connection.closed;
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
    return this.#connection.call(method, params);
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
