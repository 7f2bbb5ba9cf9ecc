#!/usr/bin/env bash
# client-suite.sh SUITE WEIR HOST PATH3 PATH4 DIR: the suite that every store passes, through weir's client, natively, at a
# server; SUITE is the client's test program `peer`. The exported directory is PATH3 over version 3, PATH4 over the others.
# The caller has started a port mapper.
set -euo pipefail
export RUST_BACKTRACE=0
suite=$1 weir=$2 host=$3 path3=$4 path4=$5
for version in 3 4.0 4.1; do
  path=$path4; [[ $version != 3 ]] || path=$path3
  url=nfs://$host$path/suite-$version?vers=$version
  "$weir" mkdir "$url"
  WEIR_PEER=$url "$suite" --ignored --nocapture the_suite_over_a_peer
  echo "client suite $version: ok"
done
