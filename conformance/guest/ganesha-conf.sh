# Sourced: ganesha_conf DIR CORE NFSV4 writes DIR/ganesha.conf for a server of DIR/export, under the same path,
# with lines of its own for two blocks.
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
