// What the page keeps in the browser: the token, and for each tab a client id with the messages that are not sent yet.
//
// Invariant: two tabs never have one client id, because the newer connection of a client ends the older one. A tab that was closed
// or crashed leaves its messages; the next tab takes them over together with the id, so that the server knows what it has already.

import { newId } from "./holdfast.js";

const TOKEN = "holdfast.token";
const CLIENT = "holdfast.client";
const OUTBOX = /^holdfast\.outbox\.([0-9a-f-]{36})\./;
/** How long a reloaded tab waits until its former self has gone. */
const RELOAD_MS = 1500;

/** Return the token; null if there is none. */
export function keptToken() {
  return sessionStorage.getItem(TOKEN) ?? localStorage.getItem(TOKEN);
}

export function keepToken(token, isRemembered) {
  forgetToken();
  (isRemembered ? localStorage : sessionStorage).setItem(TOKEN, token);
}

export function forgetToken() {
  sessionStorage.removeItem(TOKEN);
  localStorage.removeItem(TOKEN);
}

/** Remove the messages that no tab has sent: whoever signs in next must not send them. */
export function forgetMessages() {
  const keys = Array.from({ length: localStorage.length }, (_, place) => localStorage.key(place));
  for (const key of keys) if (OUTBOX.test(key)) localStorage.removeItem(key);
}

let claimed = null;

/** Return the client id of this tab. It is this tab's alone as long as it lives. */
export function claimClientId() {
  claimed ??= navigator.locks ? claimWithLocks(sessionStorage.getItem(CLIENT)) : claimByHand(sessionStorage.getItem(CLIENT));
  return claimed;
}

async function claimWithLocks(own) {
  const id = await freeId(own);
  sessionStorage.setItem(CLIENT, id);
  return id;
}

async function freeId(own) {
  // A tab that was copied has the id of the other one, which holds its lock.
  if (own && (await acquire(own, RELOAD_MS))) return own;
  for (const id of orphans()) if (await acquire(id, 0)) return id;
  const id = newId();
  await acquire(id, RELOAD_MS);
  return id;
}

/** Pages without TLS have no locks. Then the id is taken out while the tab lives, so that a copy of the tab does not find it. */
async function claimByHand(own) {
  const id = own ?? newId();
  sessionStorage.removeItem(CLIENT);
  addEventListener("pagehide", () => sessionStorage.setItem(CLIENT, id));
  addEventListener("pageshow", () => sessionStorage.removeItem(CLIENT));
  return id;
}

/** Return the ids of tabs that left messages. */
function orphans() {
  const found = new Set();
  for (let place = 0; place < localStorage.length; place += 1) {
    const id = OUTBOX.exec(localStorage.key(place))?.[1];
    if (id) found.add(id);
  }
  return found;
}

/** Take the lock of an id and hold it until the tab is gone. Return whether it was free. */
function acquire(id, patienceMs) {
  return new Promise((resolve) => {
    const options = patienceMs ? { signal: AbortSignal.timeout(patienceMs) } : { ifAvailable: true };
    const hold = (lock) => {
      resolve(lock !== null);
      return lock && new Promise(() => {});
    };
    navigator.locks.request(`holdfast.client.${id}`, options, hold).catch(() => resolve(false));
  });
}
