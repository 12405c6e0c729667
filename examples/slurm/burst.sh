#!/usr/bin/env bash
# For PrologSlurmctld and EpilogSlurmctld of Slurm: what a job reads is in the burst tier before it begins, what it wrote is stored
# after it has ended. The job's script says what, with %j for the job's number:
#
#   #TM stage /input/era5            a copy of all below it in the burst tier
#   #TM reserve 100GB /run/%j        so much room in the burst tier for what is written below it; the folder is made if it is not there
#   #TM drain /run/%j                all below it is stored
#   #TM release /run/%j              stored, and gone from the burst tier
#
# In slurm.conf:  PrologSlurmctld="/etc/slurm/burst.sh prolog"   EpilogSlurmctld="/etc/slurm/burst.sh epilog"
#
# It is done with the rights of the job's user. If the prolog fails the job goes back to the queue, held; what it said is in the log of
# slurmctld. The epilog says what could not be stored yet, which then drains by itself. TIDEMILL_* of the environment, and
# /etc/tidemill/tidemill.toml, say which array it is.
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

# reserve SIZE FOLDER
reserve() {
  as_user tidemill mkdir -p "$2" && as_user tidemill stage reserve "$1" --folder "$2" --wait && reserved+=("$2")
}

failed=0
reserved=()
while read -r mark verb path; do
  [ "$mark" = '#TM' ] || continue
  path=${path//%j/$job}
  case $when,$verb in
    prolog,reserve) reserve "${path%% *}" "${path#* }" || failed=1 ;;
    epilog,reserve) as_user tidemill stage release "${path#* }" || failed=1 ;;
    prolog,stage) as_user tidemill stage "$path" --wait || failed=1 ;;
    epilog,drain) as_user tidemill drain "$path" --wait || failed=1 ;;
    epilog,release) as_user tidemill drain "$path" --free --wait || failed=1 ;;
    *,reserve | *,stage | *,drain | *,release) ;;
    *)
      echo "burst.sh: job $job: \`#TM $verb\` is nothing that can be done: write reserve, stage, drain or release" >&2
      failed=1
      ;;
  esac
done < <(scontrol write batch_script "$job" -)
# A job that does not begin needs no room.
if [ "$when,$failed" = prolog,1 ]; then
  for path in "${reserved[@]}"; do as_user tidemill stage release "$path" || true; done
fi
exit $failed
