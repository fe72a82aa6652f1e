// Questions and orders to the admin API. A token is kept for this tab only, and sent as a header: no other site's page
// can make the browser send it.

const TOKEN = "prefix-gateway-token";
export const SIGN_IN = "sign-in-needed";
/** The gateway sends something every 15 seconds; a stream without it for so long is lost, even if the network reports nothing. */
const SILENT_SECONDS = 40;

/** Why something was not answered. `status` is 0 when there was no answer at all. */
export class Problem extends Error {
  constructor(status, code, message, param = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.param = param;
  }
}

export function setToken(token) {
  if (token) sessionStorage.setItem(TOKEN, token);
  else sessionStorage.removeItem(TOKEN);
}

export function hasToken() {
  return Boolean(sessionStorage.getItem(TOKEN));
}

/**
 * GET a path below /admin/api/.
 * @param {string} path not encoded where it holds ids: use encodeURIComponent
 * @param {Record<string, string|number|undefined|null>} query what is empty is left out
 * @returns {Promise<any>} the JSON of its answer
 * @throws {Problem} as the gateway says, or if it does not answer
 */
export async function ask(path, query = {}, { signal } = {}) {
  const answer = await call(address(path, query), { signal });
  return await answer.json();
}

/** POST a JSON body. As `ask`. */
export async function order(path, body) {
  const answer = await call(address(path, {}), {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  return await answer.json();
}

/**
 * Follow a stream of server-sent events until `signal` is aborted or it ends.
 * @param {(name: string, data: any) => void} onEvent
 * @throws {Problem} as `ask`, also when the stream ends
 */
export async function listen(path, query, onEvent, signal) {
  const answer = await call(address(path, query), { signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const late = setTimeout(() => reader.cancel(), SILENT_SECONDS * 1000);
    const { value, done } = await reader
      .read()
      .catch((error) => {
        throw signal.aborted ? error : lost();
      })
      .finally(() => clearTimeout(late));
    if (done) throw lost();
    waiting += value;
    const blocks = waiting.split("\n\n");
    waiting = blocks.pop();
    for (const block of blocks) {
      const lines = block.split("\n");
      const name = lines.find((line) => line.startsWith("event: "))?.slice(7);
      const data = lines.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6));
      if (name && data.length) onEvent(name, JSON.parse(data.join("\n")));
    }
  }
}

async function call(url, options) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = { ...options.headers, ...(token ? { authorization: `Bearer ${token}` } : {}) };
  let answer;
  try {
    answer = await fetch(url, { ...options, headers, cache: "no-store", credentials: "omit" });
  } catch (error) {
    throw options.signal?.aborted ? error : lost();
  }
  if (answer.ok) return answer;
  const problem = (await answer.json().catch(() => ({}))).error ?? {};
  if (answer.status === 401) dispatchEvent(new Event(SIGN_IN));
  throw new Problem(answer.status, problem.code ?? "", problem.message ?? `The gateway answered ${answer.status}.`, problem.param);
}

function lost() {
  return new Problem(0, "no_answer", "The gateway does not answer. Is it running, and can this browser reach its admin port?");
}

function address(path, query) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `/admin/api/${path}${text ? `?${text}` : ""}`;
}
