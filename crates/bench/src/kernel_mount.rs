//! Mounts by the kernel's NFS client.

use crate::scratch::call;
use std::path::{Path, PathBuf};
use std::process::Command;
use weir_client::Version;
use weir_tools::failure::Result;

/// A mount by the kernel, ended when dropped.
pub(crate) struct KernelMount {
    pub(crate) path: PathBuf,
}

impl KernelMount {
    /// Whether this machine's kernel can mount NFS, and this user may.
    pub(crate) fn is_possible() -> bool {
        let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        rustix::process::geteuid().is_root()
            && known.lines().any(|line| line.trim() == "nodev\tnfs")
            && ["/sbin", "/usr/sbin"].iter().any(|dir| Path::new(dir).join("mount.nfs").exists())
    }

    /// Mounts `export` of the server on a port of this machine at `path`.
    pub(crate) fn make(
        path: PathBuf,
        export: &str,
        version: Version,
        (port, mount_port): (u16, Option<u16>),
    ) -> Result<Self> {
        let mut options = format!("vers={version},proto=tcp,port={port},nolock,soft");
        if let Some(port) = mount_port {
            options.push_str(&format!(",mountport={port},mountproto=tcp"));
        }
        let mut mount = Command::new("mount");
        call(
            mount.args(["-t", "nfs", "-o", &options]).arg(format!("127.0.0.1:{export}")).arg(&path),
        )?;
        Ok(Self { path })
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        // With its cache: the next work begins without one.
        let _ = call(Command::new("umount").arg(&self.path));
    }
}
