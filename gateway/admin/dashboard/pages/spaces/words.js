// What spaces are called when a person reads of them.

/** Whose a space is: "acme", "retail (a group)". */
export function ownerOf(owner) {
  if (owner === "") return "everybody";
  if (owner.startsWith("group:")) return `${owner.slice(6)} (a group)`;
  return owner.replace(/^tenant:/, "");
}

/** Why the life of a space ended. */
export const CAUSES = {
  manual: "an operator reset it",
  idle_ttl: "it was not used for its idle time",
  max_age: "it reached its maximum age",
  model_update: "an engine serves another model or release",
  template_changed: "the template or the tokenizer changed",
  prompt_version: "its application has another current version",
  configuration: "spaces are kept apart in another way now",
  crowded_out: "it made room: there were too many spaces",
  merged: "another gateway had begun it as well; all go on with the later one",
};
