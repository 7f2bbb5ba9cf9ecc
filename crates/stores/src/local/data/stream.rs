//! Files whose size says nothing about their content: those that the kernel generates on each read
//! (proc(5), sysfs(5)), and files of size 0, which any file system may generate (FUSE).

use super::file::LocalFile;
use crate::local::sys::proc_path;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use weir_vfs::{Attr, OpenFile, Result};

/// File systems of such files, by statfs(2) type (linux/magic.h): proc, sysfs, cgroup, cgroup2,
/// debugfs, tracefs, securityfs, configfs, bpf, pstore, selinux, efivarfs, resctrl.
const MADE_UP: [u64; 13] = [
    0x9FA0,
    0x6265_6572,
    0x0027_E0EB,
    0x6367_7270,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0x6265_6570,
    0xCAFE_4A11,
    0x6165_676C,
    0xF97C_FF8C,
    0xDE5E_81E4,
    0x0765_5821,
];

/// Reopens the open file `file`, whose attributes are `attr`, if reading it from start to end is
/// the only way to determine its length; `None` for all others, and for files that are not of a
/// [`LocalFs`](crate::local::LocalFs).
///
/// # Errors It cannot be reopened.
pub fn stream_of(file: &dyn OpenFile, attr: &Attr) -> Result<Option<File>> {
    let Some(local) = file.as_any().downcast_ref::<LocalFile>() else { return Ok(None) };
    if attr.allocated > 0 {
        return Ok(None);
    }
    let file_system = rustix::fs::fstatfs(&*local.file).map_err(io::Error::from)?;
    // The field's type depends on the architecture; the value has 32 bits.
    if attr.size > 0 && !MADE_UP.contains(&(file_system.f_type as u64 & 0xFFFF_FFFF)) {
        return Ok(None);
    }
    let path = proc_path(local.file.as_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    let opened = rustix::fs::open(&*path, flags, Mode::empty()).map_err(io::Error::from)?;
    Ok(Some(opened.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::{LocalFs, LocalOptions};
    use std::io::Read;
    use std::path::Path;
    use weir_vfs::{Access, Caller, FileSystem};

    async fn stream(dir: &Path, name: &str) -> Option<File> {
        let fs = LocalFs::open(dir, LocalOptions::default()).unwrap();
        let attr = fs.lookup(&Caller::Own, fs.root().entry(name.as_bytes())).await.unwrap();
        let file = fs.open(&Caller::Own, attr.id, Access::READ).await.unwrap();
        stream_of(&*file, &attr).unwrap()
    }

    #[tokio::test]
    async fn only_files_whose_size_says_nothing_are_streams() {
        let mut text = String::new();
        let mut found = stream(Path::new("/proc"), "version").await.unwrap();
        found.read_to_string(&mut text).unwrap();
        assert_eq!(text, std::fs::read_to_string("/proc/version").unwrap());

        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("full"), "x").unwrap();
        std::fs::write(dir.path().join("empty"), "").unwrap();
        File::create(dir.path().join("hole")).unwrap().set_len(1 << 20).unwrap();
        assert!(stream(dir.path(), "full").await.is_none());
        assert!(stream(dir.path(), "hole").await.is_none(), "a hole is read as one");
        let mut empty = stream(dir.path(), "empty").await.unwrap();
        assert_eq!(empty.read_to_string(&mut text).unwrap(), 0);
    }
}
