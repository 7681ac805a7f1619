#!/usr/bin/env bash
# demo.sh JOB_PYTHON_ENVIRONMENT: submit examples/gpt2/job.sh with xsbatch and show what became of it. On a throw-away Slurm
# cluster, unless this machine has one and a site file for it.
set -euo pipefail
cd "$(dirname "$0")/.."

cluster=()
if ! { timeout 5 scontrol ping && xmem-slurm site check; } >/dev/null 2>&1; then
  export XMEM_SITE="$PWD/site-config/example.toml" XMEM_LAB="${XMEM_LAB:-/tmp/xmem-demo-$(id -u)}"
  trap 'xmem-slurm lab down' EXIT
  xmem-slurm lab up
  cluster=(xmem-slurm lab exec --)
fi
# shellcheck disable=SC1091 # made by `make demo`
source "$1/bin/activate"

show() { printf '\n$ %s\n' "$*"; }
show xsbatch examples/gpt2/job.sh
export XMEM_BUDGET=300 # the first dry run compiles the stand-in libraries; this machine may be slow
submitted=$("${cluster[@]}" xsbatch examples/gpt2/job.sh)
echo "$submitted"
job=${submitted##* }

while state=$("${cluster[@]}" scontrol show job "$job" | sed -n 's/.*JobState=\([A-Z]*\).*/\1/p') &&
  [[ $state =~ ^(PENDING|RUNNING|CONFIGURING|COMPLETING)$ ]]; do sleep 0.5; done

show scontrol show job "$job"
"${cluster[@]}" scontrol show job "$job" | grep -E 'JobId|JobState|NodeList=[a-z]|TresPerNode|Command'
show tail -n 2 "gpt2-$job.out"
tail -n 2 "gpt2-$job.out"
rm -f "gpt2-$job.out"
[ "$state" = COMPLETED ]
