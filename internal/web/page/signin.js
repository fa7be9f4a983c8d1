// Who may use this page. A key stands for that; it stays in the storage of this origin.

import { server } from "./place.js";

const place = "exec-server key";
const longestMs = 20_000; // for an answer

const ledHere = document.querySelector('meta[name="arrived"]').content === "elsewhere"; // by a page of another origin

// SignedOut is the error when a key is needed and there is none that the server accepts.
export class SignedOut extends Error {}

export function signedIn() {
  return kept() != null;
}

// principal is the name of who has signed in.
export function principal() {
  return kept()?.principal ?? "";
}

// kept returns {key, endsAtMs, principal}, or null.
function kept() {
  try {
    const known = JSON.parse(localStorage.getItem(place));
    return known?.endsAtMs > Date.now() ? known : null;
  } catch {
    return null;
  }
}

const key = () => kept()?.key ?? null;

async function request(name, options) {
  let response;
  try {
    response = await fetch(name, { credentials: "omit", signal: AbortSignal.timeout(longestMs), ...options });
  } catch {
    throw new Error(server + " cannot be reached");
  }
  if (response.status === 401 || response.status === 403) throw new SignedOut(await response.text());
  if (!response.ok) throw new Error(server + " answers with " + response.status + " " + (await response.text()));
  return response.json();
}

function post(name, headers, body) {
  return request(name, { method: "POST", headers, body: body && JSON.stringify(body) });
}

function keep(granted) {
  localStorage.setItem(place, JSON.stringify(granted));
}

// signInByLink uses the code of a link. It removes the code from the address, so that a
// bookmark or a picture of the screen does not have it. Any page can lead a browser to a
// link, so ask is called with the names, or with null for nobody, before somebody becomes
// somebody else, and before somebody whom another page has led here becomes anybody; it
// resolves to whether that may be.
export async function signInByLink(ask) {
  const code = location.hash.slice(1);
  if (!code) return;
  history.replaceState(null, "", location.pathname + location.search);
  const had = kept(), granted = await post("sign-in", {}, { code });
  let stays = false;
  // Other windows of this browser go on with the key that they have.
  if (had) stays = had.principal === granted.principal ? await works(had.key) : !(await ask(had.principal, granted.principal));
  else if (ledHere) stays = !(await ask(null, granted.principal));
  if (!stays) keep(granted);
  const unused = stays ? granted : had;
  if (unused) await forget(unused.key).catch(() => {}); // it may have ended, or be of a server before this one
}

export async function signInByToken(token) {
  keep(await post("sign-in", { Authorization: "Bearer " + token }));
}

export async function signOut() {
  const had = key();
  localStorage.removeItem(place);
  if (had) await forget(had);
}

// works reports whether the server accepts a key.
function works(key) {
  return post("ticket", { Authorization: "Bearer " + key }).then(() => true, () => false);
}

function forget(key) {
  return post("sign-out", { Authorization: "Bearer " + key });
}

// ticket returns a ticket for one connection.
export async function ticket() {
  return (await withKey("ticket", { method: "POST" })).ticket;
}

// machines returns the machines of a gateway that the person may use.
export function machines() {
  return withKey("fleet");
}

async function withKey(name, options = {}) {
  const has = key();
  if (!has) throw new SignedOut("");
  try {
    return await request(name, { ...options, headers: { Authorization: "Bearer " + has } });
  } catch (error) {
    if (error instanceof SignedOut && key() === has) localStorage.removeItem(place);
    throw error;
  }
}
