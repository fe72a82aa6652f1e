// Colours have one meaning each, on every page: what was reused, and one colour for each step of the ladder. They are
// set in style.css, once for light and once for dark.

const STEPS = ["chosen", "anywhere", "seen_here", "seen", "reference", "reusable", "prompt"];

/** The colour of a name: "hits", a rung, "text", "muted", "grid", "surface". */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name.replaceAll("_", "-")}`).trim();
}

/** The colour of reason number `position` of `of` within its rung: shades of the rung's colour, for canvases. */
export function shade(rung, position, of) {
  return mixed(colour(step(rung)), colour("surface"), position, of);
}

/** The same for styles of elements; it follows the theme by itself. */
export function shadeMark(rung, position, of) {
  return mixed(variable(step(rung)), variable("surface"), position, of);
}

/** Colours for groups that mean nothing in particular: models, tenants, sources. */
export function group(position) {
  return colour(`group-${position % 8}`);
}

/** The same for styles of elements. */
export function groupMark(position) {
  return variable(`group-${position % 8}`);
}

const step = (rung) => (STEPS.includes(rung) ? rung : "prompt");
const variable = (name) => `var(--${name.replaceAll("_", "-")})`;

function mixed(one, other, position, of) {
  const strength = of <= 1 ? 100 : 100 - (55 * position) / (of - 1);
  return `color-mix(in srgb, ${one} ${strength.toFixed(0)}%, ${other})`;
}
