// Who may use this page. A key stands for that; it stays in the storage of this origin.

const place = "exec-server key";

// SignedOut is the error when a key is needed and there is none that the server accepts.
export class SignedOut extends Error {}

export function signedIn() {
  return key() != null;
}

function key() {
  try {
    const kept = JSON.parse(localStorage.getItem(place));
    return kept && kept.endsAtMs > Date.now() ? kept.key : null;
  } catch {
    return null;
  }
}

async function post(name, headers, body) {
  let response;
  try {
    response = await fetch(name, { method: "POST", headers, body: body && JSON.stringify(body), credentials: "omit" });
  } catch {
    throw new Error("the server cannot be reached");
  }
  if (response.status === 401 || response.status === 403) throw new SignedOut(await response.text());
  if (!response.ok) throw new Error("the server answers with " + response.status + " " + (await response.text()));
  return response.json();
}

function keep(granted) {
  localStorage.setItem(place, JSON.stringify(granted));
}

// signInByLink uses the code of a link. It removes the code from the address, so that a
// bookmark or a picture of the screen does not have it.
export async function signInByLink() {
  const code = location.hash.slice(1);
  if (!code) return;
  history.replaceState(null, "", location.pathname);
  keep(await post("sign-in", {}, { code }));
}

export async function signInByToken(token) {
  keep(await post("sign-in", { Authorization: "Bearer " + token }));
}

export async function signOut() {
  const had = key();
  localStorage.removeItem(place);
  if (had) await post("sign-out", { Authorization: "Bearer " + had });
}

// ticket returns a ticket for one connection.
export async function ticket() {
  const has = key();
  if (!has) throw new SignedOut("");
  try {
    return (await post("ticket", { Authorization: "Bearer " + has })).ticket;
  } catch (error) {
    if (error instanceof SignedOut && key() === has) localStorage.removeItem(place);
    throw error;
  }
}
