// Starts the dashboard.

import { html, render } from "./vendor/ui.js";
import { followLinks } from "./core/address.js";
import { show } from "./core/theme.js";
import { Shell } from "./shell.js";

show();
followLinks();
const app = document.getElementById("app");
app.replaceChildren();
render(html`<${Shell} />`, app);
