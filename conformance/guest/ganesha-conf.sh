# Sourced. ganesha_conf DIR CORE NFSV4 writes DIR/ganesha.conf, which exports DIR/export under the same path;
# CORE and NFSV4 are added to the blocks of these names.
ganesha_conf() {
  mkdir -p "$1/export" /run/ganesha
  cat >"$1/ganesha.conf" <<END
NFS_CORE_PARAM { $2 Enable_RQUOTA = false; Enable_UDP = false; Protocols = 3, 4; allow_set_io_flusher_fail = true; }
NFSV4 { $3 RecoveryRoot = "$1"; }
EXPORT {
  Export_Id = 1; Path = "$1/export"; Pseudo = "$1/export"; Access_Type = RW; Squash = No_Root_Squash;
  SecType = sys; Protocols = 3, 4; FSAL { Name = VFS; }
}
END
}

# ganesha_answers WEIR DIR: waits until the server answers; shows its log if it does not.
ganesha_answers() {
  for _ in $(seq 100); do
    "$1" ls -o soft,retrans=0,timeo=10 "nfs://127.0.0.1$2/export" >/dev/null 2>&1 && return
    sleep 0.2
  done
  tail -n 20 "$2/ganesha.log" >&2; echo "nfs-ganesha does not answer" >&2; exit 1
}
