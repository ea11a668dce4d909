#!/usr/bin/env bash
# Installs the official conformance package, in the versions that package.json
# pins, and a Node new enough to run it, into node_modules beside this script.
#
# The lock file fixes every dependency of theirs too. To change a version, edit
# package.json and write the lock file anew, without the host it came from:
#
#	npm install --package-lock-only --omit-lockfile-registry-resolved
set -euo pipefail
cd "$(dirname "$0")"

# The machine's own Node only unpacks; it may be older than what the packages
# ask for, and the warning about that is left out.
npm ci --no-audit --no-fund --loglevel=error </dev/null

echo "node $(node_modules/node/bin/node --version)"
