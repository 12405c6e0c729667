#!/usr/bin/env bash
# Script for PrologSlurmctld and EpilogSlurmctld of Slurm. It copies the inputs of a job into the burst tier before the job begins, and
# stores the outputs after the job has ended. The job's script has directives, with %j for the job's number:
#
#   #TM stage /input/era5            copy all files below the path into the burst tier
#   #TM reserve 100GB /run/%j        reserve space in the burst tier for new files below the directory; make the directory if it is missing
#   #TM drain /run/%j                store all files below the path
#   #TM release /run/%j              store these files, and evict them from the burst tier
#
# In slurm.conf:  PrologSlurmctld="/etc/slurm/burst.sh prolog"   EpilogSlurmctld="/etc/slurm/burst.sh epilog"
#
# The commands have the rights of the job's user. If the prolog fails, Slurm holds the job in the queue; the log of slurmctld has the
# messages. The epilog reports files that are not stored yet; these are staged out later without further commands. TIDEMILL_* of the
# environment, or /etc/tidemill.toml, name the cluster.
set -euo pipefail

when=${1:-}
case $when in prolog | epilog) ;; *)
  echo "burst.sh: give prolog or epilog" >&2
  exit 2
  ;;
esac
job=${SLURM_JOB_ID:?no job: run this by PrologSlurmctld or EpilogSlurmctld}
user=${SLURM_JOB_USER:?}

# as_user COMMAND...
as_user() {
  if [ "$(id -un)" = "$user" ]; then "$@"; else setpriv --reuid "$(id -u "$user")" --regid "$(id -g "$user")" --init-groups "$@"; fi
}

# reserve SIZE DIRECTORY
reserve() {
  as_user tidemill mkdir -p "$2" && as_user tidemill stage reserve "$1" --path "$2" --wait && reserved+=("$2")
}

failed=0
reserved=()
while read -r mark verb path; do
  [ "$mark" = '#TM' ] || continue
  path=${path//%j/$job}
  case $when,$verb in
    prolog,reserve) reserve "${path%% *}" "${path#* }" || failed=1 ;;
    epilog,reserve) as_user tidemill stage release "${path#* }" || failed=1 ;;
    prolog,stage) as_user tidemill stage in "$path" --wait || failed=1 ;;
    epilog,drain) as_user tidemill stage out "$path" --wait || failed=1 ;;
    epilog,release) as_user tidemill stage out "$path" --evict --wait || failed=1 ;;
    *,reserve | *,stage | *,drain | *,release) ;;
    *)
      echo "burst.sh: job $job: \`#TM $verb\` is unknown; write reserve, stage, drain or release" >&2
      failed=1
      ;;
  esac
done < <(scontrol write batch_script "$job" -)
# A job that does not begin needs no space.
if [ "$when,$failed" = prolog,1 ]; then
  for path in "${reserved[@]}"; do as_user tidemill stage release "$path" || true; done
fi
exit $failed
