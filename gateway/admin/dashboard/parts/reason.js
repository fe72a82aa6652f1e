// A reason's name, in the colour of its step of the ladder, leading to its page; and who can do something about it.

import { html } from "../vendor/ui.js";
import { link } from "../core/address.js";

const REMEDIES = {
  application: "whoever writes the prompts",
  gateway: "whoever configures the gateway",
  capacity: "whoever pays for replicas",
  nobody: "nobody: it is how caches work, or what was meant",
};

/** @param {{code: string, title: string, rung?: string, changes?: object}} props changes: to the query of its page */
export function ReasonName({ code, title, rung = "prompt", changes }) {
  return html`<a class="reason" href=${link(["reasons", code], changes)}><i class=${`dot ${rung}`}></i>${title}</a>`;
}

/** @param {{remedy: "application"|"gateway"|"capacity"|"nobody"}} props */
export const Remedy = ({ remedy }) => html`<span>${REMEDIES[remedy]}</span>`;
