// What a replica's state means, and what to do about it.

import { counted, roughly } from "../../core/format.js";

const TONES = { ready: "good", suspect: "bad", stuck: "bad", ejected: "bad" };

const CAUSES = {
  configuration: "its configuration says so (drain: true)",
  operator: "an operator ordered it",
  leaving: "it is being removed",
  sleeping: "its engine sleeps",
};

const OTHER_MODEL =
  "The list of its engine (/v1/models) does not contain this model: it gets requests only if no other replica can. Check " +
  "whether its address is right, and the engine's --served-model-name.";

const SEVERAL =
  "Several engines answer at its address, so what it holds is not known, and it gets requests by its load only. List each " +
  "pod as a replica, or use discovery.";

/**
 * @param {object} replica as `GET replicas` has it
 * @returns {{tone: string, text: string}} text: empty where nothing is to be said
 */
export function stateOf(replica) {
  if (replica.up && !replica.serves_model && replica.state !== "draining") return { tone: "bad", text: OTHER_MODEL };
  if (replica.up && replica.several_engines && replica.state === "ready") return { tone: "bad", text: SEVERAL };
  const describe = TEXTS[replica.state];
  return { tone: TONES[replica.state] ?? "", text: describe ? describe(replica) : "" };
}

const TEXTS = {
  starting({ up, warming }) {
    if (up === null) return "Its first health check is still to come.";
    if (warming) return "Its cache is being filled; it takes requests only for want of others.";
    return "It has just come up: it gets its share of the requests little by little.";
  },
  suspect({ failures_in_a_row: failures, left_out_seconds: left, refusal }) {
    if (refusal) return `${refused(refusal)} ${avoided(left)}`;
    if (!failures) return "It sent a request away because it has too many. Others are preferred for a moment.";
    const failed = failures > 1 ? `It failed ${failures} times in a row.` : "It failed a request.";
    return `${failed} ${avoided(left)}`;
  },
  ejected({ up, failures_in_a_row: failures, left_out_seconds: left, refusal }) {
    if (!up) return "Its health checks fail. See whether the engine runs, and whether the gateway reaches its address.";
    if (refusal) return `${refused(refusal)} ${avoided(left)}`;
    return `Its health checks pass, but it failed ${failures} times in a row. ${avoided(left)} The engine's log says why.`;
  },
  stuck({ left_out_seconds: left }) {
    return `Its health checks pass, but requests waited there for nothing, while others were answered. ${avoided(left)}`;
  },
  sleeping() {
    return "Its engine sleeps: its cache is gone, and it gets no requests until it is woken (POST /wake_up at the engine).";
  },
  draining({ up, requests, draining_because: causes }) {
    const why = `It gets no more requests: ${causes.map((cause) => CAUSES[cause] ?? cause).join(", and ")}.`;
    const rest = requests ? `${counted(requests, "request")} left.` : "None is left: it can be stopped.";
    return `${why} ${rest}${up === false ? " Its health checks fail." : ""}`;
  },
};

const refused = (refusal) => `Its health checks pass, but it refuses requests of the gateway. ${refusal}.`;

const avoided = (seconds) =>
  seconds > 0
    ? `It is left out for another ${roughly(Math.max(seconds, 1))} if there are others; then one request at a time tries it.`
    : "One request at a time tries it until it answers.";
