// A reason's name, in the colour of its step of the ladder, leading to its page; and where it can be fixed.

import { html } from "../vendor/ui.js";
import { link } from "../core/address.js";

const REMEDIES = {
  application: "in the application's prompts",
  gateway: "in the gateway's configuration",
  capacity: "with more or larger replicas",
  "nobody": "none: caches work this way, or it is intended",
};

/** @param {{code: string, title: string, rung?: string, changes?: object}} props changes: to the query of its page */
export function ReasonName({ code, title, rung = "prompt", changes }) {
  return html`<a class="reason" href=${link(["reasons", code], changes)}><i class=${`dot ${rung}`}></i>${title}</a>`;
}

/** @param {{remedy: "application"|"gateway"|"capacity"|"nobody"}} props */
export const Remedy = ({ remedy }) => html`<span>${REMEDIES[remedy]}</span>`;
