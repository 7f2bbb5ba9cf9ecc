//! Files to measure with, which go away afterwards; and, for root, a file system of their own.

use crate::failure::{Asked, Failure, Result};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use weir_stores::random::Random;

/// A directory of this run, removed when dropped.
pub(super) struct Scratch {
    path: PathBuf,
    /// Dropped after the directory.
    _mounted: Option<Loop>,
}

impl Scratch {
    /// Makes a directory in `parent`.
    pub(super) fn within(parent: &Path) -> Result<Self> {
        let path = parent.join(format!("weir-bench-{}", std::process::id()));
        fs::create_dir(&path).asked(|| format!("make {}", path.display()))?;
        Ok(Self { path, _mounted: None })
    }

    /// Makes a file system of `bytes` in a file in `parent`, mounts it, and makes a directory there.
    pub(super) fn on_loop(parent: &Path, bytes: u64, kind: &str) -> Result<Self> {
        let mounted = Loop::make(parent, bytes, kind)?;
        let scratch = Self::within(&mounted.mount_point)?;
        Ok(Self { path: scratch.into_path(), _mounted: Some(mounted) })
    }

    /// Makes a directory in it.
    pub(super) fn dir(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        let made = fs::create_dir(&path).and_then(|()| path.canonicalize());
        made.asked(|| format!("make {}", path.display()))
    }

    /// Writes a file of bytes that no compression or hole detection makes smaller.
    pub(super) fn file(&self, name: &str, bytes: u64) -> Result<PathBuf> {
        let path = self.path.join(name);
        let block = Random::new(bytes).bytes(1 << 20);
        let write = || {
            let mut file = File::create(&path)?;
            let mut left = bytes;
            while left > 0 {
                let now = left.min(block.len() as u64);
                file.write_all(&block[..now as usize])?;
                left -= now;
            }
            file.sync_all()
        };
        write().asked(|| format!("write {}", path.display()))?;
        forget(&path)?;
        Ok(path)
    }

    fn into_path(mut self) -> PathBuf {
        std::mem::take(&mut self.path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            // Nothing is lost but some space, and the name says whose it is.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Takes a file out of the kernel's cache.
pub(super) fn forget(path: &Path) -> Result<()> {
    let forget = || {
        let file = File::open(path)?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        Ok::<_, std::io::Error>(())
    };
    forget().asked(|| format!("drop {} from the kernel's cache", path.display()))
}

/// A file system in a file.
struct Loop {
    image: PathBuf,
    mount_point: PathBuf,
}

impl Loop {
    fn make(parent: &Path, bytes: u64, kind: &str) -> Result<Self> {
        let image = parent.join(format!("weir-bench-{}.img", std::process::id()));
        let mount_point = std::env::temp_dir().join(format!("weir-bench-{}", std::process::id()));
        let made = File::create(&image).and_then(|file| file.set_len(bytes));
        made.asked(|| format!("make {}", image.display()))?;
        fs::create_dir_all(&mount_point).asked(|| format!("make {}", mount_point.display()))?;
        let this = Self { image, mount_point };
        let image = this.image.display().to_string();
        let quiet = if kind == "xfs" { ["-q", "-f"] } else { ["-q", "-F"] };
        call(Command::new(format!("mkfs.{kind}")).args(quiet).arg(&image))?;
        call(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&this.mount_point))?;
        Ok(this)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // It may never have been mounted.
        let _ = call(Command::new("umount").arg(&self.mount_point));
        let _ = fs::remove_dir(&self.mount_point);
        let _ = fs::remove_file(&self.image);
    }
}

fn call(command: &mut Command) -> Result<()> {
    let shown = format!("run {}", command.get_program().to_string_lossy());
    let output = command.output().asked(|| shown.clone())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Failure::new(shown, said).advice("making a file system needs root; or give --dir"))
}
