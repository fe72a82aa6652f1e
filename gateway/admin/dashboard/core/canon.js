// Canonicalization in words: what each rule does, and the lines of the configuration that turn it on.

/** Stands for all observed rules together. */
export const ALL = "all";

/**
 * What a rule does to a prompt, and what to mind before it is turned on.
 * @type {Record<string, {does: string, mind: string}>}
 */
const WORDS = {
  unicode: {
    does: "Letters that can be written in two ways get one form, and invisible characters are taken out.",
    mind: "",
  },
  whitespace: {
    does: "Line ends, blanks at the ends of lines and runs of empty lines become alike, but not in code.",
    mind: "",
  },
  "inner-spaces": {
    does: "Runs of blanks inside lines become one blank, but not in code, tables and columns.",
    mind: "",
  },
  "dash-style": {
    does: "Bullets and dashes become hyphens.",
    mind: "The model may answer in the same style.",
  },
  "json-text": {
    does: "JSON in the texts of system and developer gets sorted keys and one line.",
    mind: "The model reads the same keys in another order.",
  },
  pattern: {
    does: "What your own patterns (canon.patterns) find is replaced or taken out.",
    mind: "The model does not receive what is taken out.",
  },
  "document-order": {
    does: "Documents that you declare (canon.document_order) are sorted by their content or id.",
    mind: "The model reads the same documents in another order; declare only documents whose order means nothing.",
  },
  "system-order": {
    does: "Several system messages are sorted by their texts.",
    mind: "The model reads the same messages in another order.",
  },
  "role-order": {
    does: "System and developer messages move to the front.",
    mind: "The model reads the same messages in another order.",
  },
  "inline-system": {
    does: "System messages behind the user's join the first one, or stay as text of the user; in Messages requests by default.",
    mind: "The model may follow text of the user less than a system message.",
  },
  "tool-order": {
    does: "Tools are sorted by name.",
    mind: "The model reads the same tools in another order.",
  },
  "json-keys": {
    does: "Keys of tool schemas, and of tool arguments in the history, are sorted.",
    mind: "The model reads the same keys in another order.",
  },
  "dynamic-suffix": {
    does: "Times, dates and ids that vary move from the front of the prompt to behind its last message; a mark stays in their place.",
    mind: "The model reads the same values, further back.",
  },
  "history-trim": {
    does: "Conversations that near the model's context limit are cut in large steps instead of with every turn.",
    mind: "The model does not receive the oldest messages any more.",
  },
  [ALL]: {
    does: "Two faults in one prompt hide each other's cost: fixed one by one they show less than this.",
    mind: "",
  },
};

export const wordsOf = (rule) => WORDS[rule] ?? { does: "", mind: "" };

/** Rules that are off unless the configuration names them, so that they are not looked at. */
export const OFF_BY_DEFAULT = new Set(["inner-spaces", "dash-style", "json-text", "system-order"]);

/** Reasons that `dynamic-suffix` removes only at declared places. */
export const NEEDS_SLOT = new Set(["user_data"]);

/** Lines for the gateway's configuration that put rules into a mode, for everybody. */
export function linesFor(rules, mode = "apply") {
  return ["canon:", "  rules:", ...rules.map((rule) => `    ${rule}: ${mode}`), ""].join("\n");
}

/** The line for one model's or tenant's own entry, which goes before the lines for everybody. */
export const ownLine = (rules) => `canon: {${rules.map((rule) => `${rule}: apply`).join(", ")}}`;

/** Percentage points below which a rule makes no difference worth a word. */
const LEAST_POINTS = 0.05;

/**
 * What a rule of a summary comes to.
 * @returns {"saves"|"costs"|"none"} none: next to nothing
 */
export function effectOf({ points }) {
  if (Math.abs(points) < LEAST_POINTS) return "none";
  return points > 0 ? "saves" : "costs";
}

/** Rules of a summary that are observed and changed something, without `all`. */
export const observed = (rows) => rows.filter(({ rule, mode }) => mode === "observe" && rule !== ALL);

/** Of rules that could be turned on, the one that would save most; undefined if none would. */
export function mostOf(rows, rules) {
  return observed(rows)
    .filter((row) => rules.includes(row.rule) && effectOf(row) === "saves")
    .sort((one, other) => other.net_tokens - one.net_tokens)[0];
}
