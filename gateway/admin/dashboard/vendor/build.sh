#!/usr/bin/env bash
# Makes ui.js, chart.js and LICENSES.txt from the versions in package.json. Needs Node.js; users of the gateway never do.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cp "$here"/package.json "$here"/*.entry.js "$work"
cd "$work"
npm install --silent --no-audit --no-fund --no-package-lock
for name in ui chart; do
    node_modules/.bin/esbuild "$name.entry.js" --bundle --format=esm --minify --legal-comments=none --target=es2022 \
        --outfile="$here/$name.js"
done
: >"$here/LICENSES.txt"
for package in preact htm chart.js @kurkle/color; do
    {
        printf '%s %s\n\n' "$package" "$(node -p "require('./node_modules/$package/package.json').version")"
        cat "node_modules/$package/"LICENSE*
        printf '\n\n'
    } >>"$here/LICENSES.txt"
done
