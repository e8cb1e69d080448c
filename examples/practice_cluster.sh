#!/bin/sh
# A practice cluster: several "hosts" of network namespaces on one Linux machine. As root:
#
#   sh examples/practice_cluster.sh [HOSTS [RATE]] -- COMMAND ...
#
# runs COMMAND on the first of HOSTS (2) hosts, node1, node2 and so on, and removes all of them at its
# end. mpirun finds the others as if by ssh. RATE, such as 100mbit, is what each link carries. Each
# host has its own name, address and /dev/shm; CPUs, memory, drives and folders are those of the
# machine. It needs ip and tc (iproute2), nsenter and unshare (util-linux).
set -eu
hosts=2 rate=
[ $# -gt 0 ] && [ "$1" != -- ] && { hosts=$1; shift; }
[ $# -gt 0 ] && [ "$1" != -- ] && { rate=$1; shift; }
case $hosts in '' | *[!0-9]* | 0) echo "HOSTS must be a number above 0, got $hosts" >&2; exit 2 ;; esac
[ $# -gt 1 ] || { echo "usage: $0 [HOSTS [RATE]] -- COMMAND ..." >&2; exit 2; }
shift
[ "$(id -u)" = 0 ] || { echo "only root may make network namespaces: sudo sh $0 ..." >&2; exit 1; }

folder=$(mktemp -d) own=practice$$
remove() {
  for number in $(seq "$hosts"); do
    ip netns delete "$own-$number" 2>/dev/null || true
    umount --lazy "$folder/shm/node$number" 2>/dev/null || true
  done
  ip netns delete "$own-bridge" 2>/dev/null || true
  rm -rf "$folder"
}
trap remove EXIT
trap 'exit 130' INT TERM

ip netns add "$own-bridge"
ip -n "$own-bridge" link add br0 type bridge
ip -n "$own-bridge" link set br0 up
for number in $(seq "$hosts"); do
  space=$own-$number
  ip netns add "$space"
  ip -n "$own-bridge" link add "port$number" type veth peer eth0 netns "$space"
  ip -n "$own-bridge" link set "port$number" master br0 up
  ip -n "$space" address add "10.78.0.$number/24" dev eth0
  ip -n "$space" link set eth0 up
  ip -n "$space" link set lo up
  if [ -n "$rate" ]; then # both ways: what the host sends, and what it gets
    tc -n "$space" qdisc add dev eth0 root tbf rate "$rate" burst 256kb latency 200ms
    tc -n "$own-bridge" qdisc add dev "port$number" root tbf rate "$rate" burst 256kb latency 200ms
  fi
  mkdir -p "$folder/shm/node$number"
  mount -t tmpfs tmpfs "$folder/shm/node$number"
  echo "10.78.0.$number node$number" >>"$folder/names"
done
cat /etc/hosts >>"$folder/names"

# Called as mpirun calls ssh: with a host, and a line of shell.
cat >"$folder/enter" <<END
#!/bin/sh
host=\$1
shift
export host here="\$PWD" line="\$*"
exec nsenter --net=/run/netns/$own-\${host#node} unshare --uts --mount sh -c '
hostname "\$host"
mount --bind $folder/names /etc/hosts
mount --bind $folder/shm/\$host /dev/shm
cd "\$here"
eval "\$line"'
END
chmod +x "$folder/enter"

# Open MPI 5 and 4; a host's number of slots is what --host says, whatever CPUs there are.
export PRTE_MCA_plm_ssh_agent="$folder/enter" OMPI_MCA_plm_rsh_agent="$folder/enter"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
quoted=
for word; do
  quoted="$quoted '$(printf %s "$word" | sed "s/'/'\\\\''/g")'"
done
"$folder/enter" node1 "$quoted"
