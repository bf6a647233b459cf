// What the page asks the server for. A token, once given, goes with every question until the tab is closed.

const KEY = "truing-token";
const PATIENCE = 10_000; // Milliseconds until an answer counts as lost.

export class NeedsToken extends Error {}

export const token = {
  given: () => sessionStorage.getItem(KEY),
  keep: (text) => sessionStorage.setItem(KEY, text),
  forget: () => sessionStorage.removeItem(KEY),
};

/** Return the JSON at a path. Throws NeedsToken where a token is asked for, and an Error where no answer came. */
export async function ask(path) {
  const headers = token.given() === null ? {} : { Authorization: `Bearer ${token.given()}` };
  const answer = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
  if (answer.status === 401) throw new NeedsToken();
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}
