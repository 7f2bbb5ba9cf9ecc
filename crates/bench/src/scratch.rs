//! Temporary files for measurements; and, for root, a file system of their own.

use crate::observer::Observer;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use weir_stores::random::Random;
use weir_tools::failure::{Asked, Failure, Result};

/// A directory of this run, removed when dropped.
pub(crate) struct Scratch {
    path: PathBuf,
    /// Dropped after the directory.
    _mounted: Option<Image>,
}

impl Scratch {
    /// Creates a directory in `parent`.
    pub(crate) fn within(parent: &Path) -> Result<Self> {
        Self::make(parent.join(format!("weir-bench-{}", std::process::id())))
    }

    /// Creates another directory, `name`, in `parent`.
    pub(crate) fn named(parent: &Path, name: &str) -> Result<Self> {
        Self::make(parent.join(format!("weir-bench-{}-{name}", std::process::id())))
    }

    fn make(path: PathBuf) -> Result<Self> {
        fs::create_dir(&path).asked(|| format!("make {}", path.display()))?;
        Ok(Self { path, _mounted: None })
    }

    /// Creates a file system of `bytes` in a file in `parent`, mounts it, and creates a directory
    /// there.
    pub(crate) fn on_loop(
        parent: &Path,
        bytes: u64,
        kind: &str,
        observer: &Arc<dyn Observer>,
    ) -> Result<Self> {
        let mounted = Image::make(parent, bytes, kind, observer)?;
        let scratch = Self::within(&mounted.mount_point)?;
        Ok(Self { path: scratch.into_path(), _mounted: Some(mounted) })
    }

    /// Creates a directory in it.
    pub(crate) fn dir(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        let made = fs::create_dir(&path).and_then(|()| path.canonicalize());
        made.asked(|| format!("make {}", path.display()))
    }

    /// Writes a file whose bytes neither compression nor hole detection can shrink.
    pub(crate) fn file(&self, name: &str, bytes: u64) -> Result<PathBuf> {
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
            // Only space is lost, and the name shows its owner.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Evicts a file from the kernel's cache.
pub(crate) fn forget(path: &Path) -> Result<()> {
    let forget = || {
        let file = File::open(path)?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        Ok::<_, std::io::Error>(())
    };
    forget().asked(|| format!("drop {} from the kernel's cache", path.display()))
}

/// A file system in a file, mounted on a loop device; removed on drop.
pub(crate) struct Image {
    path: PathBuf,
    mount_point: PathBuf,
    mounted: bool,
    observer: Arc<dyn Observer>,
}

impl Image {
    /// Creates a file system of this kind and `bytes` in a file in `parent`, and mounts it.
    pub(crate) fn make(
        parent: &Path,
        bytes: u64,
        kind: &str,
        observer: &Arc<dyn Observer>,
    ) -> Result<Self> {
        let name = format!("weir-bench-{}-{kind}", std::process::id());
        let path = parent.join(format!("{name}.img"));
        let mount_point = std::env::temp_dir().join(name);
        let made = File::create(&path).and_then(|file| file.set_len(bytes));
        made.asked(|| format!("make {}", path.display()))?;
        let mut this = Self { path, mount_point, mounted: false, observer: Arc::clone(observer) };
        fs::create_dir_all(&this.mount_point)
            .asked(|| format!("make {}", this.mount_point.display()))?;
        let force = if matches!(kind, "xfs" | "btrfs") { "-f" } else { "-F" };
        call(Command::new(format!("mkfs.{kind}")).args(["-q", force]).arg(&this.path))?;
        let mut mount = Command::new("mount");
        mount.args(["-t", kind, "-o", "loop"]).arg(&this.path).arg(&this.mount_point);
        call(&mut mount)?;
        this.mounted = true;
        Ok(this)
    }

    /// The file that contains it.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where it is mounted.
    pub(crate) fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// Avoids caching data twice in the kernel, where the file below can be read directly. Returns
    /// whether that is so.
    pub(crate) fn read_directly(&self) -> bool {
        let found = Command::new("losetup").arg("-j").arg(&self.path).output();
        let found = found.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
        let Some(device) = found.ok().and_then(|o| Some(o.split_once(':')?.0.to_owned())) else {
            return false;
        };
        call(Command::new("losetup").arg("--direct-io=on").arg(device)).is_ok()
    }

    /// Unmounts it; drop removes the file.
    pub(crate) fn unmount(&mut self) -> Result<()> {
        if self.mounted {
            call(Command::new("umount").arg(&self.mount_point))?;
            self.mounted = false;
        }
        Ok(())
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // A server that has just ended may still use it.
        for _ in 0..50 {
            if self.unmount().is_ok() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        if self.mounted {
            self.observer.notice(&format!("{} stays mounted", self.mount_point.display()));
            return;
        }
        let _ = fs::remove_dir(&self.mount_point);
        let _ = fs::remove_file(&self.path);
    }
}

/// Runs a program that prints its reason when it fails.
pub(crate) fn call(command: &mut Command) -> Result<()> {
    let shown = format!("run {}", command.get_program().to_string_lossy());
    let output = command.output().asked(|| shown.clone())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Failure::new(shown, said).advice("making a file system needs root; or give --dir"))
}
