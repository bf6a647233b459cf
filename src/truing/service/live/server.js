// Requests to the server. A token is kept until the tab is closed, and sent with every request.

const KEY = "truing-token";
const TIMEOUT = 10_000; // Milliseconds.

export class NeedsToken extends Error {}
export class Refused extends Error {}

export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (text) => sessionStorage.setItem(KEY, text),
  clear: () => sessionStorage.removeItem(KEY),
};

/** Return the JSON at a path. Throw NeedsToken or Refused if the server answers with an error. */
export async function get(path) {
  const headers = token.get() === null ? {} : { Authorization: `Bearer ${token.get()}` };
  const answer = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT) });
  if (answer.status === 401) throw new NeedsToken();
  const body = await answer.json();
  if (!answer.ok) throw new Refused(body.error);
  return body;
}
