# Sourced. port_mapper starts a port mapper as $mapper, and waits until it answers: a service that starts earlier fails.

# registered SERVICE: waits until the port mapper knows it.
registered() {
  for _ in $(seq 100); do rpcinfo -p 2>/dev/null | grep -qw "$1" && return; sleep 0.1; done
  echo "the port mapper does not know $1" >&2; exit 1
}

port_mapper() { mkdir -p /run/rpcbind; rpcbind -w -f & mapper=$!; registered portmapper; }
